//! YAML, as values with their lines.

use std::collections::{BTreeMap, HashMap, btree_map::Entry};

use saphyr_parser::{Event, Parser, ScalarStyle, Span, StrInput};
use serde_json::{Number, Value};
use serde_path_to_error::{Path, Segment};

use super::depth::{MAX_DEPTH, TOO_DEEP};

/// The most values, with those that aliases repeat. A file of 1 MiB has fewer without aliases.
const MAX_VALUES: usize = 1 << 20;

/// A value, and the line where it begins.
#[derive(Clone)]
pub(super) struct Node {
    line: usize,
    content: Content,
}

#[derive(Clone)]
enum Content {
    Scalar(Value),
    List(Vec<Node>),
    Table(BTreeMap<String, Node>),
}

/// Why a text cannot be read, and the line.
pub(super) struct Invalid {
    pub(super) line: usize,
    pub(super) message: String,
}

impl Invalid {
    fn new(line: usize, message: impl Into<String>) -> Self {
        Self { line, message: message.into() }
    }
}

impl Node {
    /// The only document of `text`. A text without one is an empty table.
    pub(super) fn read(text: &str) -> Result<Self, Invalid> {
        let mut reader =
            Reader { parser: Parser::new_from_str(text), anchors: HashMap::new(), values: 0, end: 1 };
        let mut document = None;
        while let Some((event, span)) = reader.next()? {
            match event {
                Event::StreamStart | Event::DocumentStart(_) | Event::DocumentEnd => {}
                Event::StreamEnd => break,
                _ if document.is_some() => {
                    return Err(Invalid::new(span.start.line(), "there is a second document: remove it"));
                }
                event => document = Some(reader.node(event, span, 1)?),
            }
        }
        let is_empty = |node: &Self| matches!(&node.content, Content::Scalar(Value::Null));
        let empty = Self { line: 1, content: Content::Table(BTreeMap::new()) };
        Ok(document.filter(|node| !is_empty(node)).unwrap_or(empty))
    }

    /// The value.
    pub(super) fn value(&self) -> Value {
        match &self.content {
            Content::Scalar(value) => value.clone(),
            Content::List(items) => items.iter().map(Self::value).collect(),
            Content::Table(entries) => {
                entries.iter().map(|(name, node)| (name.clone(), node.value())).collect()
            }
        }
    }

    /// The line of the value at `path`, or of what is there of it.
    pub(super) fn line_of(&self, path: &Path) -> usize {
        let mut node = self;
        for segment in path {
            let next = match (segment, &node.content) {
                (Segment::Seq { index }, Content::List(items)) => items.get(*index),
                (Segment::Map { key }, Content::Table(entries)) => entries.get(key),
                _ => None,
            };
            let Some(next) = next else { break };
            node = next;
        }
        node.line
    }

    /// The number of values, and the levels of lists and tables.
    fn extent(&self) -> (usize, usize) {
        let of_all = |nodes: &mut dyn Iterator<Item = &Self>| {
            nodes
                .map(Self::extent)
                .fold((1, 1), |(values, levels), (more, inner)| (values + more, levels.max(inner + 1)))
        };
        match &self.content {
            Content::Scalar(_) => (1, 0),
            Content::List(items) => of_all(&mut items.iter()),
            Content::Table(entries) => of_all(&mut entries.values()),
        }
    }
}

struct Reader<'a> {
    /// It has a limit of 255 for lists and tables in brackets.
    parser: Parser<'a, StrInput<'a>>,
    anchors: HashMap<usize, Node>,
    values: usize,
    /// The line of the latest event.
    end: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(Event<'a>, Span)>, Invalid> {
        let next = self.parser.next_event().transpose();
        let next = next.map_err(|error| {
            let message = if error.info() == "recursion limit exceeded" { TOO_DEEP } else { error.info() };
            Invalid::new(error.marker().line().max(1), message)
        })?;
        if let Some((_, span)) = &next {
            self.end = span.start.line().max(1);
        }
        Ok(next)
    }

    /// The next event of a list or a table.
    fn inner(&mut self) -> Result<(Event<'a>, Span), Invalid> {
        let line = self.end;
        self.next()?.ok_or_else(|| Invalid::new(line, "the text ends within a list or a table"))
    }

    /// The value that begins with `event`. A list or a table there has the level `depth`.
    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Invalid> {
        let line = span.start.line().max(1);
        let (Event::Scalar(_, _, _, tag) | Event::SequenceStart(_, tag) | Event::MappingStart(_, tag)) =
            &event
        else {
            return self.repeated(&event, line, depth);
        };
        if let Some(tag) = tag {
            let (handle, suffix) = (&tag.handle, &tag.suffix);
            let message = format!(
                "the tag `{}` is not supported: remove it",
                format!("{handle}{suffix}").escape_debug()
            );
            return Err(Invalid::new(line, message));
        }
        self.count(1, line)?;
        if depth > MAX_DEPTH && !matches!(event, Event::Scalar(..)) {
            return Err(Invalid::new(line, TOO_DEEP));
        }
        let (anchor, content) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_plain = matches!(style, ScalarStyle::Plain);
                let plain = is_plain.then(|| resolved(&text)).flatten();
                (anchor, Content::Scalar(plain.unwrap_or_else(|| Value::String(text.into_owned()))))
            }
            Event::SequenceStart(anchor, _) => (anchor, Content::List(self.list(depth)?)),
            Event::MappingStart(anchor, _) => (anchor, Content::Table(self.table(depth)?)),
            _ => return self.repeated(&event, line, depth),
        };
        let node = Node { line, content };
        // 0 without one.
        if anchor > 0 {
            self.count(node.extent().0, line)?;
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Invalid> {
        let mut items = Vec::new();
        loop {
            match self.inner()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, span) => items.push(self.node(event, span, depth + 1)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<BTreeMap<String, Node>, Invalid> {
        let mut entries = BTreeMap::new();
        loop {
            let (event, span) = self.inner()?;
            let line = span.start.line().max(1);
            let name = match event {
                Event::MappingEnd => return Ok(entries),
                Event::Scalar(name, _, 0, None) => name.into_owned(),
                _ => return Err(Invalid::new(line, "the name of an entry is not a plain text")),
            };
            let (event, span) = self.inner()?;
            let node = self.node(event, span, depth + 1)?;
            match entries.entry(name) {
                Entry::Vacant(entry) => drop(entry.insert(node)),
                Entry::Occupied(entry) => {
                    let message = format!("duplicate entry `{}`", entry.key().escape_debug());
                    return Err(Invalid::new(line, message));
                }
            }
        }
    }

    /// The value that an alias repeats.
    fn repeated(&mut self, event: &Event<'a>, line: usize, depth: usize) -> Result<Node, Invalid> {
        let node = match event {
            Event::Alias(anchor) => self.anchors.get(anchor),
            _ => None,
        };
        let node = node.ok_or_else(|| Invalid::new(line, "an alias stands for nothing before it"))?;
        let (values, levels) = node.extent();
        if depth + levels > MAX_DEPTH + 1 {
            return Err(Invalid::new(line, TOO_DEEP));
        }
        let node = Node { line, ..node.clone() };
        self.count(values, line)?;
        Ok(node)
    }

    fn count(&mut self, values: usize, line: usize) -> Result<(), Invalid> {
        self.values += values;
        if self.values > MAX_VALUES {
            return Err(Invalid::new(line, "its aliases repeat too many values: write them out"));
        }
        Ok(())
    }
}

/// The value of a text without quotes, in the core schema of YAML 1.2. `None` if it is a text.
fn resolved(text: &str) -> Option<Value> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Some(Value::Null),
        "true" | "True" | "TRUE" => return Some(Value::Bool(true)),
        "false" | "False" | "FALSE" => return Some(Value::Bool(false)),
        _ => {}
    }
    let (is_negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let first = digits.trim_start_matches('.').as_bytes().first()?;
    // A leading zero is octal to some readers and decimal to others.
    let is_number = first.is_ascii_digit()
        && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-'))
        && !(digits.len() > 1 && digits.starts_with('0') && digits.as_bytes()[1].is_ascii_digit());
    if !is_number {
        return None;
    }
    let whole = match is_negative {
        true => text.parse().ok().map(|number: i64| Number::from(number)),
        false => digits.parse().ok().map(|number: u64| Number::from(number)),
    };
    let number = whole.or_else(|| Number::from_f64(text.parse().ok()?));
    number.map(Value::Number)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        let read = Node::read(text).map(|node| node.value());
        read.map_err(|Invalid { line, message }| format!("{line}: {message}"))
    }

    #[test]
    fn a_text_is_read_as_the_core_schema_says() {
        let rows = [
            ("# nothing\n", json!({})),
            ("---\n...\n", json!({})),
            (
                "a: 1\nb: -2\nc: +3\nd: 1.5\ne: 1e3\nf: .5",
                json!({"a": 1, "b": -2, "c": 3, "d": 1.5, "e": 1e3, "f": 0.5}),
            ),
            (
                "[012, 1_000, 0x1F, .inf, .nan, 1.2.3, +, ., 1-2, 5/min]",
                json!(["012", "1_000", "0x1F", ".inf", ".nan", "1.2.3", "+", ".", "1-2", "5/min"]),
            ),
            (
                "[0, -0, 18446744073709551615, 18446744073709551616, -9223372036854775808]",
                json!([0, 0, u64::MAX, 18446744073709551616_f64, i64::MIN]),
            ),
            ("[null, ~, true, FALSE, on, off, yes]", json!([null, null, true, false, "on", "off", "yes"])),
            ("{ 'a': \"1\", b: '2', \"c\\n\": [], d: {} }", json!({"a": "1", "b": "2", "c\n": [], "d": {}})),
            ("a: |\n  [[[\n  ]\nb: >\n  x\n  y\n", json!({"a": "[[[\n]\n", "b": "x y\n"})),
            ("a: &x [1, {b: 2}]\nc: *x\n", json!({"a": [1, {"b": 2}], "c": [1, {"b": 2}]})),
            ("- - 1\n  - 2\n-\n  a:\n    b\n", json!([[1, 2], {"a": "b"}])),
        ];
        for (text, expected) in rows {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn what_is_not_read_has_its_line() {
        let aliases = |count: usize| {
            format!(
                "- &a [{}]\n- &b [{}]\n- [{}]\n",
                "1,".repeat(1000),
                "*a,".repeat(1000),
                "*b,".repeat(count)
            )
        };
        let deep = |levels: usize| {
            format!(
                "- &a {}{}\n- &b {}*a{}\n",
                "[".repeat(60),
                "]".repeat(60),
                "[".repeat(levels),
                "]".repeat(levels)
            )
        };
        let rows = [
            ("a: 1\nb: !!str 2\n", "2: the tag `tag:yaml.org,2002:str` is not supported: remove it"),
            ("a:\n - !x [1]\n", "2: the tag `!x` is not supported"),
            ("a: 1\n!t b: 1\n", "2: the name of an entry is not a plain text"),
            ("a: 1\n? [1]\n: 1\n", "2: the name of an entry is not a plain text"),
            ("a: 1\nb: 2\na: 3\n", "3: duplicate entry `a`"),
            ("a: 1\n---\nb: 1\n", "3: there is a second document: remove it"),
            ("a: *x\n", "1: "),
            ("a: &x [*x]\n", "1: an alias stands for nothing before it"),
            ("a: [1,\n", "2: "),
            ("a: 'b\n", "1: "),
            ("a: 1\n\tb: 2\n", "1: "),
            (&aliases(2000), "2: its aliases repeat too many values"),
            (&deep(4), "2: more than 64"),
        ];
        for (text, expected) in rows {
            let error = read(text).unwrap_err();
            assert!(error.starts_with(expected), "{error}, and not {expected}");
        }
        assert!(read(&deep(3)).is_ok());
    }
}
