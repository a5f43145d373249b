//! The programs of the guides, as doctests: `cargo test -p tests-guide --doc`.

/// Compiles and runs the programs of each of these guides.
macro_rules! guides {
    ($($name:ident)+) => {
        $(
            #[cfg(doctest)]
            #[doc = include_str!(concat!("../../../src/guide/", stringify!($name), ".md"))]
            pub mod $name {}
        )+

        /// The guides whose programs run.
        pub const NAMES: &[&str] = &[$(stringify!($name)),+];
    };
}

guides! {
    body
    budgets
    choosing
    client_ip
    clients
    concepts
    deployment
    envoy
    failure
    faq
    grpc
    keys
    logins
    metrics_and_alerts
    migration
    operations
    outgoing
    overload
    quickstart
    redis
    servers
    several_limits
    streams
    testing
    tracing
    troubleshooting
    upgrades
    websocket
    your_code
}
