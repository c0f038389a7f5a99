//! Arbitrary bytes on a connection are messages or an error: no panic, and no more memory than one message.
//!
//! Run it from the repository's root: `cargo +nightly fuzz run frames`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use paceline_net::PROTOCOL_VERSION;
use paceline_net::fuzzing::{ToServer, ToWorker, read_frames};

fuzz_target!(|bytes: &[u8]| {
    let _ = read_frames::<ToServer>(bytes, 10);
    let _ = read_frames::<ToWorker>(bytes, 10);
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
    let _ = read_frames::<ToServer>(&framed, 10);
    let _ = read_frames::<ToWorker>(&framed, 10);
});
