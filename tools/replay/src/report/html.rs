//! Texts and tables as HTML.

/// A table. The cells of columns from `numbers` on are numbers.
pub(super) fn table(caption: &str, heads: &[&str], numbers: usize, rows: &str) -> String {
    let heads: String = heads.iter().map(|head| format!("<th scope=\"col\">{head}</th>")).collect();
    let style = match numbers {
        1 => " class=\"from-2\"",
        3 => " class=\"from-4\"",
        _ => "",
    };
    format!(
        "<div class=\"scroll\"><table{style}><caption>{}</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>",
        escaped(caption)
    )
}

/// A row of a table that on a phone is a list: each cell has its head. The cells are HTML.
pub(super) fn listed_row(heads: &[&str], cells: &[String]) -> String {
    let (head, rest) = cells.split_first().map_or(("", &[][..]), |(head, rest)| (head.as_str(), rest));
    let rest: String = heads
        .iter()
        .skip(1)
        .zip(rest)
        .map(|(head, cell)| format!("<td data-head=\"{}\"><span>{cell}</span></td>", escaped(head)))
        .collect();
    format!("<tr><th scope=\"row\">{head}</th>{rest}</tr>")
}

/// A row of a table. The cells are HTML.
pub(super) fn row(cells: &[String]) -> String {
    let (head, rest) = cells.split_first().map_or(("", &[][..]), |(head, rest)| (head.as_str(), rest));
    let rest: String = rest.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    format!("<tr><th scope=\"row\">{head}</th>{rest}</tr>")
}

/// A text as HTML.
pub(super) fn escaped(text: impl AsRef<str>) -> String {
    let mut escaped = String::with_capacity(text.as_ref().len());
    for character in text.as_ref().chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // Control characters of a log are not valid in HTML.
            character if character.is_control() => escaped.push('\u{fffd}'),
            character => escaped.push(character),
        }
    }
    escaped
}
