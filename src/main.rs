//! The program: hands its arguments to the library.
#![no_main]

cnibox::entry_point!(cnibox::run);
