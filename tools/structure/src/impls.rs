//! In how many files a type has `impl` blocks.

use std::collections::{BTreeMap, BTreeSet};

use syn::{
    ItemImpl, ItemMod, ItemUse, Type,
    visit::{self, Visit},
};

use crate::modules::{Crate, Names, Source, is_test, leaves};

/// A reader of a type opens at most this many files.
const MOST: usize = 2;

/// Types that still have more.
const ALLOWED: &[&str] = &[];

/// The types with `impl` blocks in more than [`MOST`] files, each in a sentence. An implementation of a trait
/// does not count in the file that defines the trait, where a reader looks for it.
pub(crate) fn check(source: &Crate) -> Vec<String> {
    let mut files: BTreeMap<(usize, String), BTreeSet<&str>> = BTreeMap::new();
    for (i, file) in source.files.iter().enumerate() {
        let mut impls = Impls { source, file, aliases: BTreeMap::new(), found: Vec::new() };
        // The `use` of a name may follow in an inner module.
        impls.visit_file(&file.syntax);
        for (name, of_trait) in impls.found.iter() {
            let resolve = |name: &Names| impls.resolve(i, name);
            let of_trait = of_trait.as_ref().and_then(resolve);
            if of_trait.is_none_or(|(at, _)| at != i)
                && let Some(target) = resolve(name)
            {
                files.entry(target).or_default().insert(&file.path);
            }
        }
    }
    let many = files
        .into_iter()
        .filter(|((_, name), files)| files.len() > MOST && !ALLOWED.contains(&name.as_str()));
    many.map(|((at, name), files)| {
        let files: Vec<_> = files.into_iter().collect();
        format!(
            "{name} of {} has `impl` blocks in {} files, and may have them in {MOST}: {}",
            source.files[at].path,
            files.len(),
            files.join(", ")
        )
    })
    .collect()
}

struct Impls<'a> {
    source: &'a Crate,
    file: &'a Source,
    /// What the names that the file imports stand for, from the crate's root.
    aliases: BTreeMap<String, Names>,
    /// Each implementation's type, and its trait.
    found: Vec<(Names, Option<Names>)>,
}

impl Impls<'_> {
    /// The file that defines the type or trait that the file `i` calls `names`, and its name there.
    fn resolve(&self, i: usize, names: &Names) -> Option<(usize, String)> {
        let path = match names.as_slice() {
            [name] if self.file.defines(name) => return Some((i, name.clone())),
            [first, rest @ ..] if let Some(alias) = self.aliases.get(first) => {
                [alias.as_slice(), rest].concat()
            }
            _ => Crate::absolute(&self.file.module, names)?,
        };
        self.source.resolve(&path).map(|target| (target.file, target.name))
    }
}

impl<'a> Visit<'a> for Impls<'_> {
    fn visit_item_mod(&mut self, item: &'a ItemMod) {
        if !is_test(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        leaves(&item.tree, &mut Vec::new(), &mut |path, name| {
            // A path of an inner module is relative to that module, so it leads nowhere.
            let path = Crate::absolute(&self.file.module, path);
            if let Some(path) = path.filter(|path| self.source.resolve(path).is_some()) {
                self.aliases.insert(name.to_owned(), path);
            }
        });
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        let mut of = &*item.self_ty;
        while let Type::Reference(reference) = of {
            of = &reference.elem;
        }
        if let Type::Path(of) = of
            && !is_test(&item.attrs)
        {
            let of_trait = item.trait_.as_ref().map(|(_, path, _)| names(path));
            self.found.push((names(&of.path), of_trait));
        }
        visit::visit_item_impl(self, item);
    }
}

fn names(path: &syn::Path) -> Names {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}
