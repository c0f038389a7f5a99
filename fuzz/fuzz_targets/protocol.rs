//! Arbitrary sequences of connections, messages and times must break neither side of the protocol, nor a law.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_torture::fuzz_protocol;

fuzz_target!(|bytes: &[u8]| {
    if let Err(failure) = fuzz_protocol(bytes) {
        panic!("{failure}");
    }
});
