//! Tables in text files, for cases that are only texts.
//!
//! A row is a line with cells between ` | `. Indented lines after it are further cells. Lines that begin with `# ` are
//! comments.

/// The rows of `text`, each with `N` cells. The last one has the rest of the row, with its ` | `.
///
/// # Panics
///
/// If a row has fewer cells.
pub fn rows<const N: usize>(text: &str) -> Vec<[String; N]> {
    let joined = text.replace("\n    ", " | ");
    let lines = joined.lines().filter(|line| !line.is_empty() && !line.starts_with("# "));
    let row = |line: &str| {
        // An empty cell at the end needs no space after its separator.
        let line = format!("{line} ");
        let cells: Vec<_> = line.splitn(N, " | ").map(|cell| cell.trim().to_owned()).collect();
        cells.try_into().unwrap_or_else(|cells| panic!("not {N} cells: {cells:?}"))
    };
    lines.map(row).collect()
}

/// The headers in a cell, `name: value` between ` | `.
pub fn headers(cell: &str) -> Vec<(String, String)> {
    let lines = cell.split(" | ").filter(|line| !line.is_empty());
    let header = |line: &str| {
        let (name, value) = line.split_once(':').unwrap();
        (name.to_owned(), unescaped(value.trim()))
    };
    lines.map(header).collect()
}

/// A cell in which `\x20` stands for the character with this number.
pub fn unescaped(cell: &str) -> String {
    let mut parts = cell.split("\\x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| {
        let number = u8::from_str_radix(&part[..2], 16).unwrap();
        format!("{text}{}{}", char::from(number), &part[2..])
    })
}
