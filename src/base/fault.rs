//! Why a store failed.

/// Why a store failed, if that is known: the server answered with an error, or something was measured. Code decides by it,
/// never by the text, which `store::redis::explain` makes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    // A code of the server each, which `store::redis::codes` lists.
    Ask,
    Busy,
    ClusterDown,
    CrossSlot,
    ExecAbort,
    Loading,
    MasterDown,
    Misconf,
    Moved,
    NoAuth,
    NoPermission,
    NoProto,
    NoReplicas,
    NoScript,
    OutOfMemory,
    ReadOnly,
    TryAgain,
    Unkillable,
    WrongPass,
    WrongType,
    /// The code that all other errors have.
    Other,

    /// The Redis user may not run a command.
    NoCommand,
    /// The Redis user may not access a key.
    NoKey,
    NoPasswordSet,
    NoCluster,
    NoDatabase,
    TooManyClients,
    UnknownCommand,
    /// A key holds a value that the limiter did not write.
    ForeignValue,
    /// An algorithm raised an error, or cannot be compiled.
    Algorithm,
    /// The Lua of an algorithm failed.
    Lua,
    Unknown,

    /// No program listens at the address.
    NotListening,
    /// A round trip takes longer than the deadline.
    Slow,
}

impl Fault {
    /// Whether it ends without a change of the configuration.
    pub(crate) const fn is_temporary(self) -> bool {
        matches!(
            self,
            Self::Ask
                | Self::Busy
                | Self::ClusterDown
                | Self::Loading
                | Self::MasterDown
                | Self::Misconf
                | Self::NoReplicas
                | Self::OutOfMemory
                | Self::TryAgain
                | Self::Unkillable
        )
    }

    /// Whether a key holds a value that the limiter did not write.
    pub(crate) const fn is_foreign_value(self) -> bool {
        matches!(self, Self::ForeignValue | Self::WrongType)
    }

    /// Whether it concerns a single key or algorithm, and the server decides about others.
    pub(crate) const fn is_of_one_decision(self) -> bool {
        matches!(self, Self::ForeignValue | Self::WrongType | Self::Algorithm | Self::Lua)
    }

    /// Whether the Redis user lacks a permission.
    pub(crate) const fn is_missing_permission(self) -> bool {
        matches!(self, Self::NoPermission | Self::NoCommand | Self::NoKey)
    }
}
