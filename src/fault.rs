//! Why a store failed.

/// Why a server answered with an error. Code decides by it, never by the text, which `store::redis::explain` makes of it.
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

    /// Whether the Redis user lacks a permission.
    pub(crate) const fn is_missing_permission(self) -> bool {
        matches!(self, Self::NoPermission | Self::NoCommand | Self::NoKey)
    }
}
