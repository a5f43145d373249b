//! [`box_in_place`]: a large future on the heap.

use std::pin::Pin;

/// The output of `make` on the heap, where it is made. `Box::pin` would copy it: it allocates after its argument is
/// made, and must drop the argument if there is no memory.
#[inline(always)]
pub(crate) fn box_in_place<T>(make: impl FnOnce() -> T) -> Pin<Box<T>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}
