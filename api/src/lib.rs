//! The names, ids and configs that Aliquot's users and programs share. No IO.
//!
//! What comes from outside (a flag, an API object, a file name) is parsed into one of these types at the edge, once; behind it
//! nothing has to ask again whether a UID may be part of a path.

pub mod config;
pub mod ids;
pub mod names;
pub mod quantity;
pub mod reason;
