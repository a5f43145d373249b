//! The types of other crates in the public items of a crate, compared with the table in docs/architecture.md.
//!
//! An item counts as public if it is `pub` and not hidden, because the lint `unreachable_pub` rejects a `pub`
//! item that is not reachable. Names are resolved by the file's own `use`s and the crate's re-exports.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{
    Attribute, Block, Expr, Field, File, ImplItem, Item, ItemImpl, ItemUse, Meta, Token, TraitItemFn, Type,
    Variant, Visibility,
    parse::Parse as _,
    punctuated::Punctuated,
    visit::{self, Visit},
};

use crate::modules::{Crate, Names, Source, is_test, leaves};

/// Where a public item first names each foreign crate.
type Found = BTreeMap<String, String>;

/// The differences between the public items of the crate `name`, which has this manifest, and the `table`,
/// each in a sentence.
pub(crate) fn check(name: &str, source: &Crate, manifest: &str, table: &str) -> Vec<String> {
    let (found, listed) = (foreign(source, &dependencies(manifest)), listed(table, name));
    let new = found.iter().filter(|(foreign, _)| !listed.contains(*foreign)).map(|(foreign, place)| {
        format!(
            "{name}: {place} is public and names the crate {foreign}: keep its types out of the API, or add it to the \
             table in docs/architecture.md"
        )
    });
    let old = listed.iter().filter(|foreign| !found.contains_key(*foreign)).map(|foreign| {
        format!("{name}: docs/architecture.md lists the crate {foreign}, and no public item names it")
    });
    new.chain(old).collect()
}

/// The crates that the table lists for the crate `name`: the first name in backticks of each row with a cell
/// in the column of this name.
fn listed(text: &str, name: &str) -> BTreeSet<String> {
    let cells = |row: &str| row.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = text.lines().map(cells);
    let header = rows.find_map(|row| row.iter().position(|cell| cell.trim_matches('`') == name));
    let Some(column) = header else { return BTreeSet::new() };
    let rows = rows.skip(1).take_while(|row| row.len() > column);
    let used = rows.filter(|row| !row[column].is_empty());
    used.filter_map(|row| row[1].split('`').nth(1).map(|name| name.replace('-', "_"))).collect()
}

/// The names of the dependencies in a manifest, as Rust code writes them.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_dependency = false;
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            is_dependency = section == "dependencies" || section.ends_with(".dependencies");
        } else if is_dependency && let Some((name, _)) = line.split_once(['=', '.']) {
            names.insert(name.trim().replace('-', "_"));
        }
    }
    names
}

/// Where public items of `source` first name each of `crates`.
fn foreign(source: &Crate, crates: &BTreeSet<String>) -> Found {
    let mut all = Names::new();
    let mut public = BTreeSet::new();
    let mut reexports = BTreeMap::new();
    for file in &source.files {
        for item in items_with_macros(&file.syntax.items) {
            if let Some(name) = name_of_type(&item) {
                all.push(name.clone());
                public.extend(is_shown(&item).then_some(name));
            }
            if let Item::Use(item) = item {
                leaves(&item.tree, &mut Names::new(), &mut |path, name| {
                    if path.first().is_some_and(|first| crates.contains(first)) {
                        reexports.insert([&*file.module, &[name.to_owned()]].concat(), path.to_vec());
                    }
                });
            }
        }
    }
    let private = all.into_iter().filter(|name| !public.contains(name)).collect();
    let mut walk = Walk {
        crates,
        private,
        reexports,
        file: &source.files[0],
        aliases: BTreeMap::new(),
        found: Found::new(),
    };
    for file in &source.files {
        (walk.file, walk.aliases) = (file, BTreeMap::new());
        for item in &file.syntax.items {
            if let Item::Use(item) = item {
                leaves(&item.tree, &mut Names::new(), &mut |path, name| {
                    walk.aliases.insert(name.to_owned(), path.to_vec());
                });
            }
        }
        walk.visit_file(&file.syntax);
    }
    walk.found
}

/// Visits the parts of public items that a user sees: no bodies, values, attributes and private fields.
struct Walk<'a> {
    /// The dependencies.
    crates: &'a BTreeSet<String>,
    /// The names of types and traits that are not public.
    private: BTreeSet<String>,
    /// The foreign items that modules import, by their paths in this crate.
    reexports: BTreeMap<Names, Names>,
    file: &'a Source,
    /// The paths for which the names of the file's `use`s stand.
    aliases: BTreeMap<String, Names>,
    found: Found,
}

impl Walk<'_> {
    /// The foreign crate of `path`.
    fn foreign(&self, path: &[String]) -> Option<&String> {
        let alias = path.first().and_then(|first| self.aliases.get(first));
        let whole = alias.map_or_else(|| path.to_vec(), |alias| [alias, &path[1..]].concat());
        let reexport = Crate::absolute(&self.file.module, &whole).and_then(|path| self.reexports.get(&path));
        self.crates.get(reexport.unwrap_or(&whole).first()?)
    }

    /// Notes the crate of `path`, if it is a foreign one. `line` is where the file names it.
    fn note(&mut self, path: &[String], line: usize) {
        if let Some(name) = self.foreign(path).cloned() {
            self.found.entry(name).or_insert_with(|| format!("{}:{line}", self.file.path));
        }
    }

    /// Whether `path` is a type or a trait of this crate that is not public.
    fn is_private(&self, path: &syn::Path) -> bool {
        let names = names(path);
        self.foreign(&names).is_none() && names.last().is_some_and(|name| self.private.contains(name))
    }

    /// Visits the implementations in a `macro_rules`, up to their bodies, which may have variables of the
    /// macro.
    fn visit_rules(&mut self, tokens: TokenStream) {
        let mut in_head = false;
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Group(group) => {
                    in_head &= group.delimiter() != Delimiter::Brace;
                    self.visit_rules(group.stream());
                }
                TokenTree::Ident(name) if name == "impl" => in_head = true,
                TokenTree::Ident(name) if in_head => {
                    if let Some(TokenTree::Punct(colon)) = tokens.peek()
                        && colon.as_char() == ':'
                    {
                        self.note(&[name.to_string()], name.span().start().line);
                    }
                }
                _ => {}
            }
        }
    }
}

impl<'a> Visit<'a> for Walk<'_> {
    fn visit_item(&mut self, item: &'a Item) {
        match item {
            Item::Macro(rules) if rules.mac.path.is_ident("macro_rules") => {
                self.visit_rules(rules.mac.tokens.clone());
            }
            Item::Macro(_) => {
                for item in items_with_macros(std::slice::from_ref(item)) {
                    // The visitor borrows nothing of the item.
                    Visit::visit_item(&mut *self, &item);
                }
            }
            item if is_shown(item) => visit::visit_item(self, item),
            _ => {}
        }
    }

    fn visit_item_use(&mut self, item: &'a ItemUse) {
        let line = item.use_token.span.start().line;
        leaves(&item.tree, &mut Names::new(), &mut |path, _| self.note(path, line));
    }

    fn visit_item_impl(&mut self, item: &'a ItemImpl) {
        let of_type = if let Type::Path(path) = &*item.self_ty { Some(&path.path) } else { None };
        let of_trait = item.trait_.as_ref().map(|(_, path, _)| path);
        if of_type.into_iter().chain(of_trait).any(|path| self.is_private(path)) {
            return;
        }
        if item.trait_.is_some() {
            visit::visit_item_impl(self, item);
            return;
        }
        for member in &item.items {
            if let ImplItem::Fn(member) = member
                && is_pub(&member.vis)
                && !is_hidden(&member.attrs)
            {
                self.visit_generics(&item.generics);
                self.visit_signature(&member.sig);
            }
        }
    }

    fn visit_trait_item_fn(&mut self, member: &'a TraitItemFn) {
        if !is_hidden(&member.attrs) {
            self.visit_signature(&member.sig);
        }
    }

    fn visit_variant(&mut self, variant: &'a Variant) {
        variant.fields.iter().for_each(|field| self.visit_type(&field.ty));
    }

    fn visit_field(&mut self, field: &'a Field) {
        if is_pub(&field.vis) {
            self.visit_type(&field.ty);
        }
    }

    fn visit_attribute(&mut self, attribute: &'a Attribute) {
        if attribute.path().is_ident("derive") {
            let derived = attribute.parse_args_with(Punctuated::<syn::Path, Token![,]>::parse_terminated);
            for path in derived.iter().flatten() {
                self.note(&names(path), attribute.pound_token.span.start().line);
            }
        }
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.note(&names(path), line);
        visit::visit_path(self, path);
    }

    fn visit_block(&mut self, _: &'a Block) {}

    fn visit_expr(&mut self, _: &'a Expr) {}

    fn visit_visibility(&mut self, _: &'a Visibility) {}
}

/// The items, and those in macros such as `pin_project`.
fn items_with_macros(items: &[Item]) -> Vec<Item> {
    let mut all = Vec::new();
    for item in items {
        match item {
            Item::Macro(item) => {
                let inner = item.mac.parse_body_with(File::parse).map(|file| file.items);
                all.extend(inner.unwrap_or_default());
            }
            item => all.push(item.clone()),
        }
    }
    all
}

fn names(path: &syn::Path) -> Names {
    path.segments.iter().map(|segment| segment.ident.to_string()).collect()
}

fn name_of_type(item: &Item) -> Option<String> {
    match item {
        Item::Enum(item) => Some(item.ident.to_string()),
        Item::Struct(item) => Some(item.ident.to_string()),
        Item::Trait(item) => Some(item.ident.to_string()),
        Item::Type(item) => Some(item.ident.to_string()),
        _ => None,
    }
}

/// Whether an item may be in the documentation. An implementation and a module may.
fn is_shown(item: &Item) -> bool {
    let (attributes, is_pub) = match item {
        Item::Const(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Enum(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Fn(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Impl(item) => (&item.attrs, true),
        Item::Mod(item) => (&item.attrs, true),
        Item::Static(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Struct(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Trait(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Type(item) => (&item.attrs, is_pub(&item.vis)),
        Item::Use(item) => (&item.attrs, is_pub(&item.vis)),
        _ => return false,
    };
    is_pub && !is_test(attributes) && !is_hidden(attributes)
}

const fn is_pub(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_hidden(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("doc")
            && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "hidden")
    })
}
