//! The modules of a crate: what each file defines and re-exports.

use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, File, Item, Meta, Token, UseTree, Visibility, punctuated::Punctuated};
use walkdir::WalkDir;

/// A path of names, such as `key`, `ip`, `PeerIp`. The crate itself is the empty path.
pub(crate) type Names = Vec<String>;

pub(crate) struct Crate {
    pub(crate) files: Vec<Source>,
    /// The file of each module.
    pub(crate) modules: BTreeMap<Names, usize>,
}

pub(crate) struct Source {
    /// Relative to `src/`.
    pub(crate) path: String,
    pub(crate) module: Names,
    pub(crate) syntax: File,
    pub(crate) text: String,
    /// The names of its items.
    defines: Vec<String>,
    /// Its re-exports: the name, and what it stands for.
    reexports: Vec<(String, Names)>,
}

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) file: usize,
    pub(crate) name: String,
}

impl Crate {
    pub(crate) fn read(root: &Path) -> Result<Self, Box<dyn Error>> {
        let mut paths: Vec<PathBuf> = WalkDir::new(root)
            .into_iter()
            .collect::<Result<Vec<_>, _>>()?
            .into_iter()
            .map(|entry| entry.into_path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            .collect();
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let relative = path.strip_prefix(root)?;
            let text = fs::read_to_string(&path)?;
            let syntax = syn::parse_file(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            let module = module_of(relative);
            let (mut defines, mut reexports) = (Vec::new(), Vec::new());
            for item in &syntax.items {
                collect(item, &module, &mut defines, &mut reexports);
            }
            files.push(Source {
                path: relative.display().to_string(),
                module,
                syntax,
                text,
                defines,
                reexports,
            });
        }
        let modules = files.iter().enumerate().map(|(i, file)| (file.module.clone(), i)).collect();
        Ok(Self { files, modules })
    }

    /// The file that defines what `path`, a path from the crate's root, names.
    pub(crate) fn resolve(&self, path: &[String]) -> Option<Target> {
        self.follow(path, 0)
    }

    fn follow(&self, path: &[String], depth: usize) -> Option<Target> {
        // A re-export may name itself through a glob.
        if depth > 16 {
            return None;
        }
        let mut module = Names::new();
        let mut rest = path;
        while let [name, after @ ..] = rest {
            let mut inner = module.clone();
            inner.push(name.clone());
            // A module and an item may have one name, such as `policy`: lower case is a module.
            if !self.modules.contains_key(&inner) {
                break;
            }
            (module, rest) = (inner, after);
        }
        let file = *self.modules.get(&module)?;
        let Some(name) = rest.first() else {
            return Some(Target { file, name: module.last().cloned().unwrap_or_default() });
        };
        let source = &self.files[file];
        if source.defines(name) {
            return Some(Target { file, name: name.clone() });
        }
        let (_, stands_for) = source.reexports.iter().find(|(known, _)| known == name)?;
        let whole: Names = stands_for.iter().cloned().chain(rest[1..].iter().cloned()).collect();
        self.follow(&whole, depth + 1)
    }

    /// `path`, as it is written in the module `from`, from the crate's root. `None` for one that leads
    /// elsewhere.
    pub(crate) fn absolute(from: &[String], path: &[String]) -> Option<Names> {
        match path.split_first()? {
            (first, rest) if first == "crate" => Some(rest.to_vec()),
            (first, rest) if first == "self" => Some([from, rest].concat()),
            (first, _) if first == "super" => {
                let ups = path.iter().take_while(|name| *name == "super").count();
                let above = from.len().checked_sub(ups)?;
                Some([&from[..above], &path[ups..]].concat())
            }
            _ => None,
        }
    }
}

impl Source {
    /// Whether it has an item with this name.
    pub(crate) fn defines(&self, name: &str) -> bool {
        self.defines.iter().any(|own| own == name)
    }
}

fn module_of(path: &Path) -> Names {
    let mut names: Names =
        path.with_extension("").iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if matches!(names.last().map(String::as_str), Some("mod" | "lib")) {
        names.pop();
    }
    names
}

fn collect(item: &Item, module: &[String], defines: &mut Vec<String>, reexports: &mut Vec<(String, Names)>) {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Macro(item) => {
            // `pin_project! { pub struct Name .. }`
            let mut tokens = item.mac.tokens.clone().into_iter();
            while let Some(token) = tokens.next() {
                if matches!(token.to_string().as_str(), "struct" | "enum") {
                    defines.extend(tokens.next().map(|name| name.to_string()));
                }
            }
            return;
        }
        Item::Use(item) if !matches!(item.vis, Visibility::Inherited) => {
            leaves(&item.tree, &mut Vec::new(), &mut |path, name| {
                reexports.extend(Crate::absolute(module, path).map(|path| (name.to_owned(), path)));
            });
            return;
        }
        _ => return,
    };
    defines.push(name.to_string());
}

/// Calls `found` with each path of `tree` and the name that it is imported by.
pub(crate) fn leaves(tree: &UseTree, before: &mut Names, found: &mut impl FnMut(&[String], &str)) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            leaves(&path.tree, before, found);
            before.pop();
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            if name == "self" {
                found(before, before.last().map_or("", String::as_str));
            } else {
                found(&[before.as_slice(), std::slice::from_ref(&name)].concat(), &name);
            }
        }
        UseTree::Rename(rename) => {
            let path = [before.as_slice(), &[rename.ident.to_string()]].concat();
            found(&path, &rename.rename.to_string());
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| leaves(tree, before, found)),
        UseTree::Glob(_) => found(before, "*"),
    }
}

/// Whether an item is compiled for unit tests only.
pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| is_test_meta(&attribute.meta))
}

/// Whether `meta` is `test`, `cfg(test)` or `cfg(all(test, ..))`.
pub(crate) fn is_test_meta(meta: &Meta) -> bool {
    match meta {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("cfg") || list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|conditions| conditions.iter().any(is_test_meta)),
        _ => false,
    }
}
