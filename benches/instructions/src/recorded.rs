//! `figures.toml`: the last accepted figures, and the versions that they were counted with.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, ErrorKind},
    path::Path,
};

use crate::{Failure, results::Measured};

const HEAD: &str = "\
# The last accepted counts for a decision: `make bench-instructions RECORD=yes` writes them.
";

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Recorded {
    pub(crate) versions: BTreeMap<String, String>,
    pub(crate) figures: Measured,
}

impl Recorded {
    /// What `file` holds; nothing if there is no such file.
    pub(crate) fn read(file: &Path) -> Result<Self, Failure> {
        match fs::read_to_string(file) {
            Ok(text) => Self::parse(&text).map_err(|error| format!("{}: {error}", file.display()).into()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn write(&self, file: &Path) -> io::Result<()> {
        fs::write(file, self.text())
    }

    /// Reads what [`Self::text`] writes: quoted values are versions.
    fn parse(text: &str) -> Result<Self, Failure> {
        let mut recorded = Self::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once(" = ") else { continue };
            let name = name.trim_matches('"').to_owned();
            if value.starts_with('"') {
                recorded.versions.insert(name, value.trim_matches('"').to_owned());
            } else {
                let value = value.parse().map_err(|_| format!("{value} is not a number"))?;
                recorded.figures.insert(name, value);
            }
        }
        Ok(recorded)
    }

    fn text(&self) -> String {
        let mut text = format!("{HEAD}\n[versions]\n");
        for (name, version) in &self.versions {
            text.push_str(&format!("{name} = \"{version}\"\n"));
        }
        text.push_str("\n[figures]\n");
        for (name, figure) in &self.figures {
            text.push_str(&format!("\"{name}\" = {figure}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let recorded = Recorded {
            versions: [("rustc".to_owned(), "1.95.0".to_owned())].into(),
            figures: [("one, client".to_owned(), 17_900.0), ("one, allocations".to_owned(), 15.3)].into(),
        };
        assert_eq!(Recorded::parse(&recorded.text()).unwrap(), recorded);
    }
}
