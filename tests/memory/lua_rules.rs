//! The rules for the Lua files that a program can check; see "Rules" in `lua/README.md`.
//!
//! The checks read tokens, not a syntax tree: a name counts as declared where a `local`, a
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
/// The globals that a script may use: Redis's globals without `tostring`.
const GIVEN: &str =
    "redis KEYS ARGV string table math struct tonumber type ipairs error pcall unpack next setmetatable";
/// Names of texts, and of functions that return text.
const TEXTS: [&str; 18] = [
    "text", "name", "problem", "field", "pack", "format", "sub", "rep", "body", "cell", "value", "written",
    "records", "bytes", "values", "wanted", "reply", "state",
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
            let fine = KEYWORDS.contains(&&**name)
                || GIVEN.split(' ').any(|given| given == &**name)
                || known.contains(name);
            if !is_field && !fine {
                problems.push(format!("`{name}` is a global"));
            }
            // `call('GET', key, ..)`. TIME has no key, and MGET has all of them.
            if matches!(&**name, "call" | "try") && is(after, "(") {
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
        let searches = matches!(name(Some(token)), Some("find" | "match" | "gmatch" | "gsub"));
        if searches && is(after, "(") {
            problems.extend(problem_of_pattern(&tokens[i + 2..]));
        }
        if is(Some(token), "..") && !(ends_text(&tokens[..i]) && begins_text(&tokens[i + 1..])) {
            problems.push(format!("`{before:?} .. {after:?}` may print a number"));
        }
    }
    problems
}

/// The problem of the pattern that is the second argument of a call, of which `tokens` are the arguments.
fn problem_of_pattern(tokens: &[Token]) -> Option<String> {
    let mut depth = 0;
    let mut arguments = vec![Vec::new()];
    for token in tokens {
        match token {
            Token::Symbol(close) if depth == 0 && close == ")" => break,
            Token::Symbol(comma) if depth == 0 && comma == "," => arguments.push(Vec::new()),
            token => arguments.last_mut()?.push(token.clone()),
        }
        depth += i32::from(is(Some(token), "(")) - i32::from(is(Some(token), ")"));
    }
    match arguments.get(1).map(Vec::as_slice) {
        // The fourth argument of `find`, true for a search of the text as it is.
        _ if arguments.len() == 4 && name(arguments[3].first()) == Some("true") => None,
        Some([Token::Text(pattern)]) if backtracks(pattern) => {
            Some(format!("the pattern `{pattern}` may backtrack"))
        }
        Some([Token::Text(_)]) => None,
        // A pattern in a variable is checked where the variable is passed.
        Some([Token::Name(pattern)]) if pattern == "pattern" => None,
        _ => Some("a pattern is not a text".to_owned()),
    }
}

/// The bytes that an item of a pattern matches.
type Class = [bool; 256];

/// An item of a pattern: what it matches, and how often.
struct Item {
    class: Class,
    /// `*`, `+`, `-` or `?`; a space for once.
    times: char,
}

/// Whether a search for the pattern can try a part of a text more than a fixed number of times. Between two repeated
/// items whose classes overlap stands an item that must be there, and that the first of the two does not match. A
/// pattern without `^` starts anywhere, as if the first item were one that repeats any character.
fn backtracks(pattern: &str) -> bool {
    let mut items = Vec::new();
    if !pattern.starts_with('^') {
        items.push(Item { class: [true; 256], times: '*' });
    }
    let pattern: Vec<char> = pattern.trim_start_matches('^').chars().filter(|c| !"()".contains(*c)).collect();
    let mut rest = &pattern[..];
    while let Some(first) = rest.first() {
        let length = match first {
            '%' => 2,
            // The first character of a set may be a `]`.
            '[' => 3 + rest[2..].iter().position(|c| *c == ']').unwrap(),
            '$' if rest.len() == 1 => break,
            _ => 1,
        };
        let class = class_of(&rest[..length]);
        let times = rest.get(length).copied().filter(|c| "*+-?".contains(*c));
        items.push(Item { class, times: times.unwrap_or(' ') });
        rest = &rest[length + usize::from(times.is_some())..];
    }
    let overlaps = |a: &Class, b: &Class| a.iter().zip(b).any(|(a, b)| *a && *b);
    items.iter().enumerate().any(|(i, first)| {
        // What follows the first item up to what separates it.
        let follows =
            items[i + 1..].iter().take_while(|item| item.times != ' ' || overlaps(&item.class, &first.class));
        let mut repeated = follows.filter(|item| "*+-".contains(item.times));
        "*+-".contains(first.times) && repeated.any(|item| overlaps(&item.class, &first.class))
    })
}

/// The bytes that a character, a class such as `%d`, or a set such as `[%d,]` matches.
fn class_of(item: &[char]) -> Class {
    let matches = |byte: u8| match item {
        ['.'] => true,
        ['[', '^', set @ .., ']'] => !in_set(set, byte),
        ['[', set @ .., ']'] => in_set(set, byte),
        item => in_set(item, byte),
    };
    std::array::from_fn(|byte| matches(byte as u8))
}

fn in_set(set: &[char], byte: u8) -> bool {
    match set {
        [] => false,
        ['%', class, rest @ ..] => {
            let inside = match class.to_ascii_lowercase() {
                'a' => byte.is_ascii_alphabetic(),
                'c' => byte.is_ascii_control(),
                'd' => byte.is_ascii_digit(),
                'l' => byte.is_ascii_lowercase(),
                'p' => byte.is_ascii_punctuation(),
                's' => byte.is_ascii_whitespace() || byte == 11,
                'u' => byte.is_ascii_uppercase(),
                'w' => byte.is_ascii_alphanumeric(),
                'x' => byte.is_ascii_hexdigit(),
                'z' => byte == 0,
                _ => char::from(byte) == *class,
            };
            (inside != class.is_ascii_uppercase()) || in_set(rest, byte)
        }
        [from, '-', to, rest @ ..] => (*from..=*to).contains(&char::from(byte)) || in_set(rest, byte),
        [one, rest @ ..] => char::from(byte) == *one || in_set(rest, byte),
    }
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

/// The folders whose files are the body of a function, which has the name of the folder.
const FUNCTIONS: [&str; 2] = ["bucket_in_full", "decide_in_full"];

/// The files whose names other files use.
fn include_files() -> Vec<(String, String)> {
    let functions = FUNCTIONS.iter().flat_map(|folder| lua_files(&format!("lua/{folder}")));
    let usual = lua_files("lua").into_iter().filter(|(path, _)| path.ends_with("/usual.lua"));
    lua_files("lua/include").into_iter().chain(usual).chain(functions).collect()
}

#[test]
fn lua_files_follow_the_rules() {
    let include = include_files();
    let mut included: BTreeSet<String> = include.iter().flat_map(|(_, lua)| declared(&tokens(lua))).collect();
    // Declared by src/store/redis/script.rs.
    included.extend(["make", "brief", "sliding_window", "KIND", "SIZE"].map(str::to_owned));
    included.extend(FUNCTIONS.map(str::to_owned));
    let files =
        [include, lua_files("lua"), lua_files("lua/algorithm"), lua_files("lua/hash"), lua_files("examples")]
            .concat();
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
    let include = include_files();
    let stem = |path: &str| Path::new(path).file_stem().unwrap().to_str().unwrap().to_owned();
    // Files of a function know each other. Other files know its name.
    let is_known = |export: &str, path: &str| {
        let folder = |path: &str| Path::new(path).parent().unwrap().to_owned();
        export.ends_with("/usual.lua")
            || folder(export).ends_with("include")
            || folder(export) == folder(path)
    };
    let functions = FUNCTIONS.map(|name| (format!("include/{name}"), BTreeSet::from([name.to_owned()])));
    let exports = include.iter().map(|(path, lua)| (path.clone(), exported(lua)));
    let exports: Vec<_> = exports.chain(functions).collect();
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
            .filter(|(file, names)| {
                *file != path && is_known(file, &path) && names.iter().any(|name| foreign.contains(name))
            })
            .map(|(file, _)| stem(file))
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
        ("separators that may be missing", r"string.match('', '^([%d,]*);?(%d*)$')", "may backtrack"),
        ("a separator of the first class", r"string.find('', '^[%d,]+,%d+$')", "may backtrack"),
        ("classes that overlap", r"string.find('', '^%w+%d+$')", "may backtrack"),
        ("nothing between", r"string.find('', '^%d*%d*$')", "may backtrack"),
        ("a range that overlaps", r"string.find('', '^[a-f]*%-?[e-h]*$')", "may backtrack"),
        ("no anchor", r"string.find('', '%d+$')", "may backtrack"),
        ("the shortest match", r"string.find('', '^.-;.-$')", "may backtrack"),
        ("a pattern in a variable", r"local p = '' string.find('', p)", "a pattern is not a text"),
        ("a built pattern", r"string.gsub('', '^' .. '%d', '')", "a pattern is not a text"),
    ];
    let included = BTreeSet::from(["call", "format"].map(str::to_owned));
    for (name, lua, problem) in rows {
        let found = problems(lua, &included);
        assert!(found.iter().any(|found| found.contains(problem)), "{name}: {found:?}");
    }
    let fine = "-- counter = 1\nlocal function f(key, x) return { y = redis.call('GET', key) .. 'a' } end";
    assert!(problems(fine, &BTreeSet::new()).iter().all(|problem| problem.contains("may print")), "{fine}");
    let patterns =
        "local a = string.find('', '^%-%d+$') string.find('', '^(%d+);(%d+),(%x+)$') string.find('', '[^%z]')
        string.find('', ';', 1, true) string.find('', '^%x*:%d?%d+') return a";
    assert_eq!(problems(patterns, &included), Vec::<String>::new());
    let fine =
        "local function f(key, n) call('SET', key, format('%d', n) .. ':' .. format('%d', n)) end return f";
    assert_eq!(problems(fine, &included), Vec::<String>::new());
}
