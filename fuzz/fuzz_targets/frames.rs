//! Arbitrary bytes on a connection are messages or an error: no panic, and no more memory than one message.
//!
//! Run it from the repository's root: `cargo +nightly fuzz run frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_net::PROTOCOL_VERSION;
use paceline_net::fuzzing::{ToServer, ToWorker, first_message};

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Some((_, length))) = first_message::<ToServer>(rest) {
        rest = &rest[length..];
    }
    let mut rest = bytes;
    while let Ok(Some((_, length))) = first_message::<ToWorker>(rest) {
        rest = &rest[length..];
    }
    // With a valid header, so that the body is decoded too.
    let mut framed = b"PCLN".to_vec();
    framed.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    framed.extend_from_slice(&1_u16.to_le_bytes());
    framed.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&framed);
    hasher.update(bytes);
    framed.extend_from_slice(&hasher.finalize().to_le_bytes());
    framed.extend_from_slice(bytes);
    let _ = first_message::<ToServer>(&framed);
    let _ = first_message::<ToWorker>(&framed);
});
