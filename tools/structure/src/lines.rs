//! Counts lines of code.

use std::{collections::BTreeSet, ops::RangeInclusive};

use proc_macro2::{Delimiter, LexError, Span, TokenStream, TokenTree};
use syn::Meta;

use crate::modules::is_test_meta;

/// What begins an item, which may have commas in it. Anything else, such as a field, ends at a comma.
const ITEMS: &[&str] =
    &["const", "enum", "fn", "impl", "mod", "static", "struct", "trait", "type", "union", "use"];

/// The number of lines of `text` with code. Comments, documentation, blank lines and what is compiled for
/// unit tests only do not count; every line of a text literal does.
pub(crate) fn of_code(text: &str) -> Result<usize, LexError> {
    let mut lines = BTreeSet::new();
    collect(text.parse()?, &mut lines);
    Ok(lines.len())
}

fn collect(tokens: TokenStream, lines: &mut BTreeSet<usize>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut rest = tokens.as_slice();
    while let [token, after @ ..] = rest {
        rest = match attribute(rest) {
            Some((Attribute::Docs, after)) => after,
            Some((Attribute::Test, after)) => after_item(after),
            None => {
                match token {
                    TokenTree::Group(group) => {
                        lines.extend(of(group.span_open()));
                        collect(group.stream(), lines);
                        lines.extend(of(group.span_close()));
                    }
                    other => lines.extend(of(other.span())),
                }
                after
            }
        };
    }
}

fn of(span: Span) -> RangeInclusive<usize> {
    span.start().line..=span.end().line
}

/// An attribute whose lines are not code. A doc comment is one as well: `#[doc = ".."]`.
enum Attribute {
    Docs,
    Test,
}

/// The attribute that `tokens` begin with, and what follows it.
fn attribute(tokens: &[TokenTree]) -> Option<(Attribute, &[TokenTree])> {
    let is = |token: &TokenTree, char| matches!(token, TokenTree::Punct(punct) if punct.as_char() == char);
    let (group, after) = match tokens {
        [hash, TokenTree::Group(group), after @ ..] if is(hash, '#') => (group, after),
        [hash, bang, TokenTree::Group(group), after @ ..] if is(hash, '#') && is(bang, '!') => (group, after),
        _ => return None,
    };
    match syn::parse2::<Meta>(group.stream()).ok()? {
        Meta::NameValue(value) if value.path.is_ident("doc") => Some((Attribute::Docs, after)),
        meta if is_test_meta(&meta) => Some((Attribute::Test, after)),
        _ => None,
    }
}

/// What follows the item, statement or field that `tokens` begin with.
fn after_item(tokens: &[TokenTree]) -> &[TokenTree] {
    let mut is_item = false;
    for (i, token) in tokens.iter().enumerate() {
        let after = &tokens[i + 1..];
        match token {
            TokenTree::Ident(ident) => is_item |= ITEMS.contains(&ident.to_string().as_str()),
            // `use a::{b, c};`
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => match after {
                [TokenTree::Punct(punct), after @ ..] if punct.as_char() == ';' => return after,
                _ => return after,
            },
            TokenTree::Punct(punct) if punct.as_char() == ';' || punct.as_char() == ',' && !is_item => {
                return after;
            }
            _ => {}
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_outside_tests_counts() {
        let rows = [
            ("comments and blank lines", "// why\n\n/* a\nb */\nconst A: u8 = 1; // what\n", 1),
            (
                "documentation",
                "//! the file\n\n/// the item\n#[doc = \"more\"]\n#[doc(hidden)]\nfn f() {}\n",
                2,
            ),
            ("a function", "fn f() {\n    // why\n    g();\n}\n", 3),
            ("a text", "const A: &str = \"a\n\n// no comment\";\n", 3),
            ("a macro", "m! {\n    /// the field\n    a: u8,\n}\n", 3),
            ("a module of tests", "fn f() {}\n#[cfg(test)]\nmod tests {\n    fn g() {}\n}\nfn h() {}\n", 2),
            ("tests of a feature", "#[cfg(all(test, feature = \"a\"))]\nmod tests {\n    fn g() {}\n}\n", 0),
            ("a feature", "#[cfg(all(doctest, feature = \"a\"))]\nmod a {\n}\n", 3),
            ("a method", "impl A {\n    #[cfg(test)]\n    fn f<A, B>() {\n    }\n    fn g() {}\n}\n", 3),
            ("a field", "struct A {\n    #[cfg(test)]\n    calls: u8,\n    a: u8,\n}\n", 3),
            ("an import", "#[cfg(test)]\nuse a::{\n    b,\n    c,\n};\nuse d;\n", 1),
        ];
        for (name, text, lines) in rows {
            assert_eq!(of_code(text).unwrap(), lines, "{name}");
        }
    }
}
