//! Runs the scripts as Redis does: Lua 5.1 with `redis.call` and `struct`.

use std::{cell::RefCell, collections::HashMap, mem};

use mlua::{Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};

use super::keyspace::{Keyspace, Reply};

/// One for each thread, because compiling the scripts takes longer than a schedule.
struct Machine {
    lua: Lua,
    scripts: HashMap<Vec<u8>, Function>,
}

thread_local! {
    static MACHINE: RefCell<Machine> = RefCell::new(Machine::new());
    /// The data of the server whose script runs.
    static DATA: RefCell<Keyspace> = RefCell::default();
}

/// As in Redis 7, a command that fails raises a table.
const CALL: &str = "
    local run = ...
    return function(...)
        local reply = run(...)
        if type(reply) == 'table' and reply.err then
            error(reply, 0)
        end
        return reply
    end";

/// Runs the script `text` with `data`. `hash` names it.
pub(super) fn run(
    data: &mut Keyspace,
    hash: &[u8],
    text: &[u8],
    keys: &[Vec<u8>],
    arguments: &[Vec<u8>],
) -> Reply {
    MACHINE.with(|machine| {
        let machine = &mut *machine.borrow_mut();
        DATA.with(|slot| mem::swap(&mut *slot.borrow_mut(), data));
        let reply = machine.evaluate(hash, text, keys, arguments);
        DATA.with(|slot| mem::swap(&mut *slot.borrow_mut(), data));
        reply.unwrap_or_else(|error| Reply::Error(text_of(&error)))
    })
}

fn text_of(error: &mlua::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
    let line = text.lines().next().unwrap_or_default();
    if line.starts_with("OOM") || line.starts_with("READONLY") {
        line.to_owned()
    } else {
        format!("ERR {line}")
    }
}

impl Machine {
    fn new() -> Self {
        // Lua's `pcall`, which the scripts use, and not mlua's.
        let options = LuaOptions::new().catch_rust_panics(false);
        let lua = Lua::new_with(StdLib::MATH | StdLib::STRING | StdLib::TABLE, options).unwrap();
        set_up(&lua).unwrap();
        Self { lua, scripts: HashMap::new() }
    }

    fn evaluate(
        &mut self,
        hash: &[u8],
        text: &[u8],
        keys: &[Vec<u8>],
        arguments: &[Vec<u8>],
    ) -> mlua::Result<Reply> {
        let lua = &self.lua;
        let script = match self.scripts.get(hash) {
            Some(script) => script.clone(),
            None => {
                let script = lua.load(text).set_name("@user_script").into_function()?;
                self.scripts.insert(hash.to_vec(), script.clone());
                script
            }
        };
        let list =
            |all: &[Vec<u8>]| lua.create_sequence_from(all.iter().map(|one| lua.create_string(one).unwrap()));
        lua.globals().set("KEYS", list(keys)?)?;
        lua.globals().set("ARGV", list(arguments)?)?;
        match script.call::<Value>(()) {
            Ok(value) => Ok(from_lua(&value)),
            Err(error) => Err(error),
        }
    }
}

fn set_up(lua: &Lua) -> mlua::Result<()> {
    let run = lua.create_function(|lua, arguments: MultiValue| {
        let command: Vec<Vec<u8>> = arguments.iter().map(argument).collect();
        let reply = DATA.with(|data| data.borrow_mut().run(&command));
        to_lua(lua, reply)
    })?;
    let redis = lua.create_table()?;
    redis.set("pcall", run.clone())?;
    redis.set("call", lua.load(CALL).call::<Function>(run)?)?;
    lua.globals().set("redis", redis)?;
    let packing = lua.create_table()?;
    packing.set("pack", lua.create_function(|lua, arguments: MultiValue| pack(lua, &arguments))?)?;
    packing.set("unpack", lua.create_function(|lua, arguments: MultiValue| unpack(lua, &arguments))?)?;
    lua.globals().set("struct", packing)
}

/// An argument of a command.
fn argument(value: &Value) -> Vec<u8> {
    match value {
        Value::String(text) => text.as_bytes().to_vec(),
        Value::Integer(number) => number.to_string().into_bytes(),
        Value::Number(number) => number.to_string().into_bytes(),
        other => panic!("a command has an argument of type {}", other.type_name()),
    }
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let table = |name: &str, text: &str| -> mlua::Result<Value> {
        let table = lua.create_table()?;
        table.set(name, text)?;
        Ok(Value::Table(table))
    };
    match reply {
        Reply::Nil => Ok(Value::Boolean(false)),
        Reply::Ok => table("ok", "OK"),
        Reply::Error(text) => table("err", &text),
        Reply::Int(number) => Ok(Value::Number(number as f64)),
        Reply::Bulk(bytes) => Ok(Value::String(lua.create_string(bytes)?)),
        Reply::Array(all) => {
            let all = all.into_iter().map(|one| to_lua(lua, one)).collect::<mlua::Result<Vec<_>>>()?;
            Ok(Value::Table(lua.create_sequence_from(all)?))
        }
    }
}

/// What the client sees of the value that a script returns.
fn from_lua(value: &Value) -> Reply {
    match value {
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => from_table(table),
        _ => Reply::Nil,
    }
}

fn from_table(table: &Table) -> Reply {
    if let Ok(Some(error)) = table.get::<Option<String>>("err") {
        return Reply::Error(error);
    }
    if let Ok(Some(_)) = table.get::<Option<String>>("ok") {
        return Reply::Ok;
    }
    Reply::Array(table.sequence_values::<Value>().map(|value| from_lua(&value.unwrap())).collect())
}

/// A part of a format of `struct`: the letter, and the number after it.
fn parts(format: &[u8]) -> (bool, Vec<(u8, usize)>) {
    let (little, rest) = match format.split_first() {
        Some((b'<', rest)) => (true, rest),
        Some((b'>', rest)) => (false, rest),
        _ => panic!("a format without an order of bytes"),
    };
    let mut parts: Vec<(u8, usize)> = Vec::new();
    for byte in rest {
        match (byte, parts.last_mut()) {
            (b'0'..=b'9', Some((_, size))) => *size = *size * 10 + usize::from(byte - b'0'),
            _ => parts.push((*byte, 0)),
        }
    }
    (little, parts)
}

fn pack(lua: &Lua, arguments: &MultiValue) -> mlua::Result<LuaString> {
    let (little, parts) = parts(&argument(&arguments[0]));
    let mut packed = Vec::with_capacity(8 * parts.len());
    for ((letter, size), value) in parts.into_iter().zip(arguments.iter().skip(1)) {
        let number = || value.as_number().or_else(|| value.as_integer().map(|number| number as f64));
        let number = || number().ok_or_else(|| mlua::Error::runtime("struct.pack: number expected"));
        match letter {
            b'd' => packed.extend(if little { number()?.to_le_bytes() } else { number()?.to_be_bytes() }),
            b'I' => packed.extend(&(number()? as u64).to_be_bytes()[8 - size..]),
            b'B' => packed.push(number()? as u8),
            b'c' => packed.extend(&argument(value)[..size]),
            other => panic!("the format {} is not simulated", char::from(other)),
        }
    }
    lua.create_string(packed)
}

fn unpack(lua: &Lua, arguments: &MultiValue) -> mlua::Result<MultiValue> {
    let (little, parts) = parts(&argument(&arguments[0]));
    let Value::String(text) = &arguments[1] else { return Err(mlua::Error::runtime("string expected")) };
    let bytes = text.as_bytes();
    let mut at = match arguments.get(2) {
        Some(Value::Number(at)) => *at as usize - 1,
        Some(Value::Integer(at)) => *at as usize - 1,
        _ => 0,
    };
    let mut values = MultiValue::with_capacity(parts.len() + 1);
    for (letter, size) in parts {
        let size = match letter {
            b'd' => 8,
            b'H' => 2,
            b'B' => 1,
            _ => size,
        };
        let part = bytes.get(at..at + size).ok_or_else(|| mlua::Error::runtime("data string too short"))?;
        at += size;
        values.push_back(match letter {
            b'd' => {
                let bytes: [u8; 8] = part.try_into().unwrap();
                Value::Number(if little { f64::from_le_bytes(bytes) } else { f64::from_be_bytes(bytes) })
            }
            b'H' if little => Value::Number(u16::from_le_bytes(part.try_into().unwrap()).into()),
            b'I' | b'B' => Value::Number(part.iter().fold(0, |all, byte| all << 8 | u64::from(*byte)) as f64),
            b'c' => Value::String(lua.create_string(part)?),
            other => panic!("the format {} is not simulated", char::from(other)),
        });
    }
    values.push_back(Value::Number((at + 1) as f64));
    Ok(values)
}
