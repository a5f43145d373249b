//! The rules for the Lua files that a program can check; see "Rules" in `lua/README.md`.
//!
//! Part of `make lint`. The checks read tokens, not a syntax tree: a name counts as declared where a `local`, a
//! parameter or a loop of the same file declares it, or where a file under `include/` declares it.

use std::{collections::BTreeSet, fs, path::Path};

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Name(String),
    Text(String),
    Number,
    Symbol(String),
}

fn tokens(lua: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = lua;
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("--[[") {
            rest.find("]]").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("--") {
            rest.find('\n').unwrap_or(rest.len())
        } else if first.is_whitespace() {
            first.len_utf8()
        } else if first == '\'' || first == '"' {
            let end = rest[1..].find(first).map_or(rest.len(), |end| end + 2);
            tokens.push(Token::Text(rest[1..end - 1].to_owned()));
            end
        } else if first.is_ascii_digit() {
            tokens.push(Token::Number);
            rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len())
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            tokens.push(Token::Name(rest[..end].to_owned()));
            end
        } else {
            let width = if rest.starts_with("...") {
                3
            } else if ["..", "==", "~=", "<=", ">="].iter().any(|long| rest.starts_with(long)) {
                2
            } else {
                1
            };
            tokens.push(Token::Symbol(rest[..width].to_owned()));
            width
        };
        rest = &rest[length..];
    }
    tokens
}

fn name(token: Option<&Token>) -> Option<&str> {
    match token {
        Some(Token::Name(name)) => Some(name),
        _ => None,
    }
}

fn is(token: Option<&Token>, symbol: &str) -> bool {
    token == Some(&Token::Symbol(symbol.to_owned()))
}

const KEYWORDS: [&str; 21] = [
    "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "if", "in", "local", "nil",
    "not", "or", "repeat", "return", "then", "true", "until", "while",
];
/// The globals that a script may use: those of Redis without `tostring`.
const GIVEN: [&str; 14] = [
    "redis", "KEYS", "ARGV", "string", "table", "math", "struct", "tonumber", "type", "ipairs", "error",
    "pcall", "unpack", "next",
];
/// Names of texts, and of functions that return text.
const TEXTS: [&str; 18] = [
    "text", "name", "problem", "field", "pack", "format", "sub", "rep", "body", "cell", "value", "written",
    "records", "bytes", "values", "record", "wanted", "take",
];

/// The names that `local`, parameters and loops declare.
fn declared(tokens: &[Token]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for (i, token) in tokens.iter().enumerate() {
        let mut rest = match name(Some(token)) {
            Some("local" | "for") => i + 1,
            Some("function") => {
                i + tokens[i..].iter().position(|token| is(Some(token), "(")).unwrap_or(0) + 1
            }
            _ => continue,
        };
        if name(tokens.get(rest)) == Some("function") {
            rest += 1;
        }
        while let Some(name) = name(tokens.get(rest)) {
            names.insert(name.to_owned());
            if !is(tokens.get(rest + 1), ",") {
                break;
            }
            rest += 2;
        }
    }
    names
}

fn problems(lua: &str, included: &BTreeSet<String>) -> Vec<String> {
    let tokens = tokens(lua);
    let mut known = declared(&tokens);
    known.extend(included.iter().cloned());
    let mut problems = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let (before, after) = (i.checked_sub(1).map(|i| &tokens[i]), tokens.get(i + 1));
        if let Token::Name(name) = token {
            let is_field = is(before, ".") || (is(after, "=") && (is(before, "{") || is(before, ",")));
            let fine = KEYWORDS.contains(&&**name) || GIVEN.contains(&&**name) || known.contains(name);
            if !is_field && !fine {
                problems.push(format!("`{name}` is a global"));
            }
            // `call('GET', key, ..)`. TIME has no key, and MGET has all of them.
            if name == "call" && is(after, "(") {
                let command = match tokens.get(i + 2) {
                    Some(Token::Text(command)) => &**command,
                    _ => "?",
                };
                let has_key = is(tokens.get(i + 3), ",") && self::name(tokens.get(i + 4)) == Some("key");
                if command == "?" || (!matches!(command, "TIME" | "MGET") && !has_key) {
                    problems.push(format!("the first argument of `{command}` is not `key`"));
                }
            }
        }
        if is(Some(token), "..") && !(ends_text(&tokens[..i]) && begins_text(&tokens[i + 1..])) {
            problems.push(format!("`{before:?} .. {after:?}` may print a number"));
        }
    }
    problems
}

fn begins_text(tokens: &[Token]) -> bool {
    match tokens {
        [Token::Text(_), ..] => true,
        // string.char and string.format
        [Token::Name(string), Token::Symbol(dot), Token::Name(function), ..]
            if string == "string" && dot == "." =>
        {
            TEXTS.contains(&&**function)
        }
        [Token::Name(name), ..] => TEXTS.contains(&&**name),
        _ => false,
    }
}

fn ends_text(tokens: &[Token]) -> bool {
    match tokens {
        [.., Token::Text(_)] => true,
        [.., Token::Name(name)] => TEXTS.contains(&&**name),
        [.., Token::Symbol(close)] if close == ")" || close == "]" => {
            // Find the name that is called or indexed.
            let mut depth = 0;
            for (i, token) in tokens.iter().enumerate().rev() {
                depth += i32::from(is(Some(token), ")") || is(Some(token), "]"));
                depth -= i32::from(is(Some(token), "(") || is(Some(token), "["));
                if depth == 0 {
                    return i > 0 && name(Some(&tokens[i - 1])).is_some_and(|name| TEXTS.contains(&name));
                }
            }
            false
        }
        _ => false,
    }
}

fn lua_files(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "lua"))
        .map(|path| (path.display().to_string(), fs::read_to_string(&path).unwrap()))
        .collect()
}

#[test]
fn lua_files_follow_the_rules() {
    let include = lua_files("lua/include");
    let mut included: BTreeSet<String> = include.iter().flat_map(|(_, lua)| declared(&tokens(lua))).collect();
    // Declared by src/store/redis/script/assemble.rs.
    included.extend(["make", "brief", "algorithm", "ARGUMENTS"].map(str::to_owned));
    let files = [include, lua_files("lua"), lua_files("lua/algorithm"), lua_files("examples")].concat();
    assert!(files.len() > 10);
    for (path, lua) in files {
        assert_eq!(problems(&lua, &included), Vec::<String>::new(), "{path}");
    }
}

/// The names that `local` declares at the start of a line, outside any function.
fn exported(lua: &str) -> BTreeSet<String> {
    let outermost: Vec<&str> = lua.lines().filter(|line| line.starts_with("local ")).collect();
    let heads = outermost.iter().map(|line| line.split('(').next().unwrap_or(line));
    heads.flat_map(|head| declared(&tokens(&format!("{head}(")))).collect()
}

/// The include files in the `-- uses:` line of a file.
fn used(lua: &str) -> BTreeSet<String> {
    let line = lua.lines().find_map(|line| line.strip_prefix("-- uses:")).unwrap_or_default();
    line.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn each_file_names_the_include_files_it_uses() {
    let include = lua_files("lua/include");
    let stem = |path: &str| Path::new(path).file_stem().unwrap().to_str().unwrap().to_owned();
    let exports: Vec<_> = include.iter().map(|(path, lua)| (stem(path), exported(lua))).collect();
    let files = [include, lua_files("lua"), lua_files("lua/algorithm")].concat();
    for (path, lua) in files {
        let (all, own) = (tokens(&lua), declared(&tokens(&lua)));
        // A name after a dot is a field.
        let is_field = |i: usize| i > 0 && is(all.get(i - 1), ".");
        let names: BTreeSet<_> = (0..all.len())
            .filter(|i| !is_field(*i))
            .filter_map(|i| name(all.get(i)))
            .map(str::to_owned)
            .collect();
        let foreign: BTreeSet<_> = names.difference(&own).collect();
        let needed: BTreeSet<_> = exports
            .iter()
            .filter(|(file, names)| *file != stem(&path) && names.iter().any(|name| foreign.contains(name)))
            .map(|(file, _)| file.clone())
            .collect();
        assert_eq!(used(&lua), needed, "{path}");
    }
}

#[test]
fn each_broken_rule_is_reported() {
    let rows = [
        ("a global is set", "counter = 1", "`counter` is a global"),
        ("a global is read", "local x = counter + 1", "`counter` is a global"),
        ("a global function", "function f() end", "`f` is a global"),
        ("tostring", "local now = 1 return tostring(now)", "`tostring` is a global"),
        ("a number is concatenated", "local now = 1 return 'a' .. now", "may print a number"),
        ("a sum is concatenated", "local now = 1 return (now + 1) .. 'a'", "may print a number"),
        ("another key", "redis.call('GET', 'a')", "the first argument of `GET` is not `key`"),
        ("a built key", "local function f(key) redis.call('GET', 'a' .. key) end", "is not `key`"),
        ("no key", "redis.call('KEYS')", "is not `key`"),
        ("a computed command", "local c = 'GET' redis.call(c)", "is not `key`"),
    ];
    let included = BTreeSet::from(["call", "format"].map(str::to_owned));
    for (name, lua, problem) in rows {
        let found = problems(lua, &included);
        assert!(found.iter().any(|found| found.contains(problem)), "{name}: {found:?}");
    }
    let fine = "-- counter = 1\nlocal function f(key, x) return { y = redis.call('GET', key) .. 'a' } end";
    assert!(problems(fine, &BTreeSet::new()).iter().all(|problem| problem.contains("may print")), "{fine}");
    let fine =
        "local function f(key, n) call('SET', key, format('%d', n) .. ':' .. format('%d', n)) end return f";
    assert_eq!(problems(fine, &included), Vec::<String>::new());
}
