//! The *move* plane: flat parameters with a named [`Layout`].

mod layout;

pub use layout::{Entry, Layout};
