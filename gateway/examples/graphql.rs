//! GraphQL: a query costs what it asks for, so one query for ten thousand values is not as cheap as one for a
//! single value.
//!
//! Run with
//!
//! ```text
//! cargo run -p tower-ratelimit-gateway --example graphql
//! ```
//!
//! and, in another terminal, run the lines right after each other. A client has 100 units a minute. A field
//! costs one unit. The fields in a field with an argument `first`, `last` or `limit`, or one with such a member,
//! cost as many times more as it asks for.
//!
//! ```text
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"{ viewer { name } }"}' http://127.0.0.1:3000/graphql
//!     200
//!     ratelimit: "complexity";r=98;t=59, "per-ip";r=59;t=59, "in-flight";r=7
//!     {"data":{},"extensions":{"cost":2}}
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"query($n: Int) { users(first: $n) { name friends(first: 3) { name } } }","variables":{"n":10}}' http://127.0.0.1:3000/graphql
//!     200
//!     ratelimit: "complexity";r=47;t=29, "per-ip";r=58;t=58, "in-flight";r=7
//!     {"data":{},"extensions":{"cost":51}}
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"{ users(first: 20) { ...F } } fragment F on User { id name email }"}' http://127.0.0.1:3000/graphql
//!     429
//!     retry-after: 9
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"{ users(first: 1000000) { name } }"}' http://127.0.0.1:3000/graphql
//!     429
//!     {"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Request cannot be satisfied as assigned quota has been exceeded","status":429,"detail":"The cost of the request exceeds the quota; waiting does not help.","violated-policies":["complexity"]}
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"{ viewer {"}' http://127.0.0.1:3000/graphql
//!     400
//!     {"type":"about:blank","title":"Bad Request","status":400,"detail":"The query is not valid GraphQL."}
//! curl -i -H 'x-api-key: k-ann' -d '{"query":"{ a { b { c { d { e { f { g { h { i { j { k } } } } } } } } } } }"}' http://127.0.0.1:3000/graphql
//!     400
//!     {"type":"about:blank","title":"Bad Request","status":400,"detail":"The query is nested deeper than 10 levels."}
//! ```
//!
//! The cost needs no schema. It is a bound only if every list of the schema has such an argument, with a
//! largest value that the schema enforces, and if the service validates each query. A list without one counts as
//! a single value. A length that is not a positive integer is rejected. The length of a variable that is not sent
//! is its default in the query. Directives are not evaluated: a skipped field costs too.
//!
//! `PORT` (3000) is the port, 0 for any free one.

#![allow(clippy::print_stdout, reason = "the example prints its results")]

use std::{
    borrow::Cow,
    collections::{HashMap, HashSet},
    env,
    error::Error,
    fmt,
    net::SocketAddr,
    time::Duration,
};

use axum::{Extension, Json, Router, routing::post};
use graphql_parser::{
    parse_query,
    query::{
        Definition, Field, OperationDefinition, Selection, SelectionSet, Value as Argument,
        VariableDefinition,
    },
};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tower_ratelimit::{
    Header, Limiter, MemoryStore, PeerIp, Policy, Quota, RateLimitLayer, Rule, layer::Rules,
};
use tower_ratelimit_gateway::body::{BodyBytes, BufferBodyLayer, StrictNames};

/// The levels of a query. The recursion below ends there, also in fragments that contain themselves.
const MAX_DEPTH: usize = 10;

/// What a query costs.
#[derive(Clone, Copy)]
struct Complexity(u64);

/// A GraphQL request. `serde` fails if a member occurs twice, and `StrictNames` if it occurs in another case: the
/// service might read the other one.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GraphQl<'a> {
    #[serde(borrow)]
    query: Cow<'a, str>,
    #[serde(default)]
    variables: Option<Members>,
}

/// The value of a variable. A variant for any JSON would accept an object in which a name occurs twice.
#[derive(Deserialize)]
#[serde(untagged)]
#[allow(dead_code, reason = "only integers are lengths")]
enum Variable {
    Null,
    Int(i64),
    List(Vec<Self>),
    Object(Members),
    Bool(bool),
    Float(f64),
    Text(String),
}

/// The members of an object, or an error if a name occurs twice.
#[derive(Default)]
struct Members(HashMap<String, Variable>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        let mut members = HashMap::new();
        while let Some((name, value)) = map.next_entry()? {
            if members.insert(name, value).is_some() {
                return Err(A::Error::custom("a name occurs twice"));
            }
        }
        Ok(Members(members))
    }
}

impl Complexity {
    fn of(body: &BodyBytes) -> Result<Self, Box<dyn Error>> {
        let StrictNames(request): StrictNames<GraphQl<'_>> = serde_json::from_slice(body.get()?)
            .map_err(|_| "the body of the request is not a GraphQL request")?;
        let document = parse_query::<&str>(&request.query).map_err(|_| "the query is not valid GraphQL")?;
        let (mut operations, mut defined, mut fragments) = (Vec::new(), Vec::new(), HashMap::new());
        for definition in &document.definitions {
            match definition {
                Definition::Operation(OperationDefinition::SelectionSet(fields)) => operations.push(fields),
                Definition::Operation(OperationDefinition::Query(query)) => {
                    operations.push(&query.selection_set);
                    defined.extend(&query.variable_definitions);
                }
                Definition::Operation(OperationDefinition::Mutation(change)) => {
                    operations.push(&change.selection_set);
                    defined.extend(&change.variable_definitions);
                }
                Definition::Operation(OperationDefinition::Subscription(_)) => {
                    return Err("subscriptions are not sent over HTTP".into());
                }
                Definition::Fragment(fragment) => {
                    // The service might use the other one.
                    if fragments.insert(fragment.name, &fragment.selection_set).is_some() {
                        return Err("two fragments have the same name".into());
                    }
                }
            }
        }
        let Members(variables) = request.variables.unwrap_or_default();
        let (known, open) = (HashMap::new(), HashSet::new());
        let mut costs = Costs { fragments, variables: &variables, defined, known, open };
        // `operationName` chooses one of several. The most expensive one is charged, regardless of the choice.
        let mut most = 0;
        for operation in operations {
            most = most.max(costs.of(operation, 1)?.units);
        }
        Ok(Self(most))
    }
}

/// What a selection costs, and how many levels it has.
#[derive(Clone, Copy, Default)]
struct Cost {
    units: u64,
    height: usize,
}

struct Costs<'a> {
    fragments: HashMap<&'a str, &'a SelectionSet<'a, &'a str>>,
    variables: &'a HashMap<String, Variable>,
    /// The variables of all operations.
    defined: Vec<&'a VariableDefinition<'a, &'a str>>,
    /// The cost of each fragment is found once, or a chain of fragments would take exponential time.
    known: HashMap<&'a str, Cost>,
    /// The fragments that are being counted.
    open: HashSet<&'a str>,
}

impl<'a> Costs<'a> {
    fn of(&mut self, selection: &'a SelectionSet<'a, &'a str>, depth: usize) -> Result<Cost, String> {
        let mut cost = Cost::default();
        for item in &selection.items {
            let (inner, factor, own) = match item {
                Selection::Field(field) if field.selection_set.items.is_empty() => (Cost::default(), 1, 1),
                Selection::Field(field) => {
                    (self.within(&field.selection_set, depth)?, self.length(field)?, 1)
                }
                Selection::InlineFragment(fragment) => (self.within(&fragment.selection_set, depth)?, 1, 0),
                Selection::FragmentSpread(spread) => (self.fragment(spread.fragment_name, depth)?, 1, 0),
            };
            let units = inner.units.saturating_mul(factor).saturating_add(own);
            cost.units = cost.units.saturating_add(units);
            cost.height = cost.height.max(inner.height + 1);
        }
        Ok(cost)
    }

    fn within(&mut self, selection: &'a SelectionSet<'a, &'a str>, depth: usize) -> Result<Cost, String> {
        if depth >= MAX_DEPTH { Err(too_deep()) } else { self.of(selection, depth + 1) }
    }

    fn fragment(&mut self, name: &'a str, depth: usize) -> Result<Cost, String> {
        if let Some(cost) = self.known.get(name) {
            return if depth + cost.height > MAX_DEPTH { Err(too_deep()) } else { Ok(*cost) };
        }
        let Some(selection) = self.fragments.get(name).copied() else {
            return Err("the query uses an unknown fragment".into());
        };
        if !self.open.insert(name) {
            return Err("a fragment contains itself".into());
        }
        let cost = self.within(selection, depth)?;
        self.open.remove(name);
        self.known.insert(name, cost);
        Ok(cost)
    }

    /// The number of values that a field asks for: the highest length in its arguments.
    fn length(&self, field: &Field<'a, &'a str>) -> Result<u64, String> {
        let mut longest = None;
        for (name, value) in &field.arguments {
            longest = longest.max(self.length_of(name, value)?);
        }
        Ok(longest.unwrap_or(1))
    }

    /// The highest length in the argument `name`, also in `page: { first: 10 }`. The parser bounds its depth.
    fn length_of(&self, name: &str, value: &Argument<'a, &'a str>) -> Result<Option<u64>, String> {
        let mut longest = None;
        match value {
            Argument::Variable(variable) => return self.length_of_variable(name, variable),
            Argument::Object(members) => {
                for (name, value) in members {
                    longest = longest.max(self.length_of(name, value)?);
                }
            }
            Argument::List(values) => {
                for value in values {
                    longest = longest.max(self.length_of(name, value)?);
                }
            }
            Argument::Int(length) if is_length(name) => longest = Some(positive(length.as_i64())?),
            Argument::Null if is_length(name) => longest = Some(UNKNOWN_LENGTH),
            _ if is_length(name) => return Err(no_length()),
            _ => {}
        }
        Ok(longest)
    }

    /// The highest length in the value of a variable, or in its default if it is not sent. Several operations may
    /// define it, and each has its own default: the highest one counts.
    fn length_of_variable(&self, name: &str, variable: &str) -> Result<Option<u64>, String> {
        if let Some(value) = self.variables.get(variable) {
            return value.length(name);
        }
        let null = &Argument::Null;
        let mut defaults = (self.defined.iter())
            .filter(|defined| defined.name == variable)
            .map(|defined| defined.default_value.as_ref().unwrap_or(null))
            .peekable();
        if defaults.peek().is_none() {
            return Err("the query uses an unknown variable".into());
        }
        defaults.try_fold(None, |longest, default| Ok(longest.max(self.length_of(name, default)?)))
    }
}

/// A length that is not known here, such as the default of the schema, counts as a long one.
const UNKNOWN_LENGTH: u64 = 100;

fn is_length(name: &str) -> bool {
    matches!(name, "first" | "last" | "limit")
}

impl Variable {
    /// The same as [`Costs::length_of`].
    fn length(&self, name: &str) -> Result<Option<u64>, String> {
        let mut longest = None;
        match self {
            Self::Object(Members(members)) => {
                for (name, value) in members {
                    longest = longest.max(value.length(name)?);
                }
            }
            Self::List(values) => {
                for value in values {
                    longest = longest.max(value.length(name)?);
                }
            }
            Self::Int(length) if is_length(name) => longest = Some(positive(Some(*length))?),
            Self::Null if is_length(name) => longest = Some(UNKNOWN_LENGTH),
            Self::Bool(_) | Self::Float(_) | Self::Text(_) if is_length(name) => return Err(no_length()),
            _ => {}
        }
        Ok(longest)
    }
}

/// A service may read 0, -1 or text as no limit.
fn positive(length: Option<i64>) -> Result<u64, String> {
    length.and_then(|length| u64::try_from(length).ok()).filter(|length| *length > 0).ok_or_else(no_length)
}

fn no_length() -> String {
    "the length of a list must be a positive integer".into()
}

fn too_deep() -> String {
    format!("the query is nested deeper than {MAX_DEPTH} levels")
}

/// The service. A schema would run the query.
async fn graphql(Extension(Complexity(cost)): Extension<Complexity>) -> Json<Value> {
    Json(json!({ "data": {}, "extensions": { "cost": cost } }))
}

pub(crate) fn app(limiter: impl Into<Limiter>) -> Router {
    let limiter = limiter.into();
    // In front of the buffer, so that an address cannot fill the memory or keep the parser busy.
    let per_ip = Rule::new(Policy::new("per-ip", Quota::per_minute(60)), PeerIp::new());
    let in_flight = Rule::new(Policy::concurrency("in-flight", 8), PeerIp::new());
    let addresses =
        RateLimitLayer::with_rules(limiter.clone(), Rules::new().always(per_ip).always(in_flight));
    let buffer = BufferBodyLayer::new(16 * 1024)
        .timeout(Duration::from_secs(5))
        .max_total_bytes(32 << 20)
        .reject_unread()
        .parse_with(Complexity::of);
    let complexity = Rule::new(Policy::new("complexity", Quota::per_minute(100)), Header::new("x-api-key"))
        .cost_from_extension(|complexity: &Complexity| complexity.0);
    let complexity = RateLimitLayer::with_rules(limiter, complexity);
    Router::new().route("/graphql", post(graphql)).layer(complexity).layer(buffer).layer(addresses)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().init();
    let port = env::var("PORT").map_or(Ok(3000), |port| port.parse::<u16>())?;
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, app(MemoryStore::new()).into_make_service_with_connect_info::<SocketAddr>())
        .await?;
    Ok(())
}
