//! The data of a Redis server, and the commands that the scripts call.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A reply, as a script or a client sees it.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Reply {
    Nil,
    Ok,
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Self>),
    Error(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Data {
    Text(Vec<u8>),
    List(VecDeque<Vec<u8>>),
    /// Members and scores. Sorted when they are read.
    Sorted(BTreeMap<Vec<u8>, f64>),
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    data: Data,
    /// In milliseconds of the server's clock.
    expires: Option<u64>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Keyspace {
    keys: BTreeMap<Vec<u8>, Entry>,
    /// Microseconds since 1970. Does not change while a script runs.
    pub(super) now: u64,
    /// Instead of a write: the error, such as `OOM ...`.
    pub(super) failing_writes: Option<&'static str>,
}

type Answer = Result<Reply, String>;

const WRITES: &[&str] =
    &["SET", "SETRANGE", "DEL", "PEXPIRE", "RPUSH", "LSET", "LTRIM", "ZADD", "ZREM", "ZREMRANGEBYRANK"];
const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

impl Keyspace {
    pub(super) fn clear(&mut self) {
        self.keys.clear();
    }

    pub(super) fn names(&self) -> BTreeSet<String> {
        self.keys.keys().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
    }

    /// The units that holders of permits under `key` have in use at `now`.
    pub(super) fn permits(&self, key: &str, now: u64) -> u64 {
        let members = self.sorted(key.as_bytes()).unwrap_or_default();
        let units = |member: &[u8]| String::from_utf8_lossy(member).split(':').nth(1)?.parse::<u64>().ok();
        let held = members.iter().filter(|(_, expires)| **expires > now as f64);
        held.filter_map(|(member, _)| units(member)).sum()
    }

    /// Runs a command, without a script or in one.
    pub(super) fn run(&mut self, command: &[Vec<u8>]) -> Reply {
        let name = String::from_utf8_lossy(&command[0]).to_ascii_uppercase();
        if let Some(error) = self.failing_writes.filter(|_| WRITES.contains(&&*name)) {
            return Reply::Error(error.into());
        }
        let millis = self.now / 1_000;
        if let Some(key) = command.get(1)
            && self.keys.get(key).is_some_and(|entry| entry.expires.is_some_and(|end| end <= millis))
        {
            self.keys.remove(key);
        }
        self.execute(&name, &command[1..]).unwrap_or_else(Reply::Error)
    }

    fn execute(&mut self, name: &str, arguments: &[Vec<u8>]) -> Answer {
        let key = arguments.first().cloned().unwrap_or_default();
        match name {
            "PING" => Ok(Reply::Bulk(b"PONG".to_vec())),
            "TIME" => {
                let part = |number: u64| Reply::Bulk(number.to_string().into_bytes());
                Ok(Reply::Array(vec![part(self.now / 1_000_000), part(self.now % 1_000_000)]))
            }
            "GET" => Ok(self.text(&key)?.map_or(Reply::Nil, Reply::Bulk)),
            "MGET" => {
                let millis = self.now / 1_000;
                self.keys.retain(|_, entry| entry.expires.is_none_or(|end| end > millis));
                // A value of another type counts as none.
                let value = |key: &Vec<u8>| self.text(key).ok().flatten().map_or(Reply::Nil, Reply::Bulk);
                Ok(Reply::Array(arguments.iter().map(value).collect()))
            }
            "EXISTS" => {
                let millis = self.now / 1_000;
                self.keys.retain(|_, entry| entry.expires.is_none_or(|end| end > millis));
                Ok(Reply::Int(arguments.iter().filter(|key| self.keys.contains_key(*key)).count() as i64))
            }
            "DEL" => Ok(Reply::Int(self.keys.remove(&key).is_some().into())),
            "SET" => self.set(&key, &arguments[1], &arguments[2..]),
            "SETRANGE" => {
                let (from, part) = (number(&arguments[1])? as usize, &arguments[2]);
                let mut text = self.text(&key)?.unwrap_or_default();
                text.resize(text.len().max(from + part.len()), 0);
                text[from..from + part.len()].copy_from_slice(part);
                let (length, expires) = (text.len(), self.keys.get(&key).and_then(|entry| entry.expires));
                self.keys.insert(key, Entry { data: Data::Text(text), expires });
                Ok(Reply::Int(length as i64))
            }
            "PEXPIRE" => {
                let end = self.now / 1_000 + number(&arguments[1])? as u64;
                let entry = self.keys.get_mut(&key);
                Ok(Reply::Int(entry.map(|entry| entry.expires = Some(end)).is_some().into()))
            }
            "PTTL" => Ok(Reply::Int(match self.keys.get(&key).map(|entry| entry.expires) {
                None => -2,
                Some(None) => -1,
                Some(Some(end)) => (end - self.now / 1_000) as i64,
            })),
            "LLEN" => Ok(Reply::Int(self.list(&key)?.len() as i64)),
            "LINDEX" => {
                let list = self.list(&key)?;
                let place = place(number(&arguments[1])?, list.len());
                Ok(place.and_then(|place| list.get(place)).map_or(Reply::Nil, |one| Reply::Bulk(one.clone())))
            }
            "RPUSH" => self.change_list(&key, |list| {
                list.extend(arguments[1..].iter().cloned());
                Ok(Reply::Int(list.len() as i64))
            }),
            "LSET" => {
                if !self.keys.contains_key(&key) {
                    return Err("ERR no such key".into());
                }
                let index = number(&arguments[1])?;
                self.change_list(&key, |list| {
                    let place = place(index, list.len()).filter(|place| *place < list.len());
                    list[place.ok_or("ERR index out of range")?] = arguments[2].clone();
                    Ok(Reply::Ok)
                })
            }
            "LTRIM" => {
                let (first, last) = (number(&arguments[1])?, number(&arguments[2])?);
                self.change_list(&key, |list| {
                    let (first, end) = range(first, last, list.len());
                    *list = list.drain(first..end.max(first)).collect();
                    Ok(Reply::Ok)
                })
            }
            _ => self.execute_sorted(name, &key, arguments),
        }
    }

    fn execute_sorted(&mut self, name: &str, key: &[u8], arguments: &[Vec<u8>]) -> Answer {
        match name {
            "ZSCORE" => {
                let score = self.sorted(key)?.get(&arguments[1]).copied();
                Ok(score.map_or(Reply::Nil, |score| Reply::Bulk(score.to_string().into_bytes())))
            }
            "ZADD" => self.change_sorted(key, |members| {
                let mut added = 0;
                for pair in arguments[1..].chunks(2) {
                    added += i64::from(members.insert(pair[1].clone(), number(&pair[0])? as f64).is_none());
                }
                Ok(Reply::Int(added))
            }),
            "ZREM" => self
                .change_sorted(key, |members| Ok(Reply::Int(members.remove(&arguments[1]).is_some().into()))),
            "ZREMRANGEBYRANK" => {
                let sorted = in_order(&self.sorted(key)?);
                let (first, end) = range(number(&arguments[1])?, number(&arguments[2])?, sorted.len());
                self.change_sorted(key, |members| {
                    let removed = sorted.get(first..end).unwrap_or_default();
                    members.retain(|member, _| !removed.iter().any(|(other, _)| other == member));
                    Ok(Reply::Int(removed.len() as i64))
                })
            }
            // Always with WITHSCORES.
            "ZREVRANGE" => {
                let mut sorted = in_order(&self.sorted(key)?);
                sorted.reverse();
                let (first, end) = range(number(&arguments[1])?, number(&arguments[2])?, sorted.len());
                Ok(with_scores(sorted.get(first..end).unwrap_or_default()))
            }
            // Always with WITHSCORES LIMIT 0 count.
            "ZRANGEBYSCORE" => {
                let (least, most) = (bound(&arguments[1])?, bound(&arguments[2])?);
                let mut sorted = in_order(&self.sorted(key)?);
                sorted.retain(|(_, score)| {
                    (*score > least.0 || !least.1 && *score == least.0)
                        && (*score < most.0 || !most.1 && *score == most.0)
                });
                sorted.truncate(number(&arguments[6])? as usize);
                Ok(with_scores(&sorted))
            }
            _ => Err(format!("ERR unknown command '{name}'")),
        }
    }

    fn set(&mut self, key: &[u8], value: &[u8], options: &[Vec<u8>]) -> Answer {
        let has = |name: &[u8]| options.iter().any(|option| option == name);
        if has(b"NX") && self.keys.contains_key(key) {
            return Ok(Reply::Nil);
        }
        let expires = match options.iter().position(|option| option == b"PX") {
            Some(place) => Some(self.now / 1_000 + number(&options[place + 1])? as u64),
            None if has(b"KEEPTTL") => self.keys.get(key).and_then(|entry| entry.expires),
            None => None,
        };
        self.keys.insert(key.to_vec(), Entry { data: Data::Text(value.to_vec()), expires });
        Ok(Reply::Ok)
    }

    fn text(&self, key: &[u8]) -> Result<Option<Vec<u8>>, String> {
        match self.keys.get(key).map(|entry| &entry.data) {
            None => Ok(None),
            Some(Data::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    fn list(&self, key: &[u8]) -> Result<VecDeque<Vec<u8>>, String> {
        match self.keys.get(key).map(|entry| &entry.data) {
            None => Ok(VecDeque::new()),
            Some(Data::List(list)) => Ok(list.clone()),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    fn sorted(&self, key: &[u8]) -> Result<BTreeMap<Vec<u8>, f64>, String> {
        match self.keys.get(key).map(|entry| &entry.data) {
            None => Ok(BTreeMap::new()),
            Some(Data::Sorted(members)) => Ok(members.clone()),
            Some(_) => Err(WRONG_TYPE.into()),
        }
    }

    fn change_list(&mut self, key: &[u8], change: impl FnOnce(&mut VecDeque<Vec<u8>>) -> Answer) -> Answer {
        let mut list = self.list(key)?;
        let answer = change(&mut list)?;
        let data = (!list.is_empty()).then_some(Data::List(list));
        self.replace(key, data);
        Ok(answer)
    }

    fn change_sorted(
        &mut self,
        key: &[u8],
        change: impl FnOnce(&mut BTreeMap<Vec<u8>, f64>) -> Answer,
    ) -> Answer {
        let mut members = self.sorted(key)?;
        let answer = change(&mut members)?;
        let data = (!members.is_empty()).then_some(Data::Sorted(members));
        self.replace(key, data);
        Ok(answer)
    }

    /// Keeps the TTL. An empty list or set does not exist.
    fn replace(&mut self, key: &[u8], data: Option<Data>) {
        match data {
            Some(data) => {
                let expires = self.keys.get(key).and_then(|entry| entry.expires);
                self.keys.insert(key.to_vec(), Entry { data, expires });
            }
            None => drop(self.keys.remove(key)),
        }
    }
}

fn number(text: &[u8]) -> Result<i64, String> {
    let text = str::from_utf8(text).map_err(|_| NOT_A_NUMBER)?;
    text.parse().map_err(|_| NOT_A_NUMBER.into())
}

const NOT_A_NUMBER: &str = "ERR value is not an integer or out of range";

/// A bound of scores, and whether it is exclusive.
fn bound(text: &[u8]) -> Result<(f64, bool), String> {
    let text = String::from_utf8_lossy(text);
    let (text, exclusive) = text.strip_prefix('(').map_or((&*text, false), |text| (text, true));
    let bound = match text {
        "+inf" => f64::INFINITY,
        text => text.parse().map_err(|_| "ERR min or max is not a float".to_owned())?,
    };
    Ok((bound, exclusive))
}

/// The place of an index that counts from the end if it is negative.
fn place(index: i64, length: usize) -> Option<usize> {
    usize::try_from(if index < 0 { index + length as i64 } else { index }).ok()
}

/// The first place and the end of a range whose indices count from the end if they are negative.
fn range(first: i64, last: i64, length: usize) -> (usize, usize) {
    let first = place(first, length).unwrap_or(0);
    let end = place(last, length).map_or(0, |last| last + 1).min(length);
    (first.min(length), end.max(first.min(length)))
}

fn in_order(members: &BTreeMap<Vec<u8>, f64>) -> Vec<(Vec<u8>, f64)> {
    let mut sorted: Vec<_> = members.iter().map(|(member, score)| (member.clone(), *score)).collect();
    sorted.sort_by(|a, b| a.1.total_cmp(&b.1).then_with(|| a.0.cmp(&b.0)));
    sorted
}

fn with_scores(members: &[(Vec<u8>, f64)]) -> Reply {
    let pair = |(member, score): &(Vec<u8>, f64)| {
        [Reply::Bulk(member.clone()), Reply::Bulk(score.to_string().into_bytes())]
    };
    Reply::Array(members.iter().flat_map(pair).collect())
}
