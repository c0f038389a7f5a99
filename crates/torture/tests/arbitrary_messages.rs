//! Arbitrary sequences of connections, messages and times break neither side of the protocol, nor a law.

use paceline_torture::fuzz_protocol;
use proptest::collection::vec;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(20_000) })]

    #[test]
    fn no_sequence_breaks_the_protocol(bytes in vec(any::<u8>(), 0..600)) {
        if let Err(failure) = fuzz_protocol(&bytes) {
            panic!("{failure}");
        }
    }
}

#[test]
fn sequences_get_past_the_handshake() {
    // Bytes of SplitMix64.
    let mix = |index: u64| {
        let mixed = index.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        ((mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 56) as u8
    };
    let bytes: Vec<u8> = (1..80_000).map(mix).collect();
    let events: u64 = bytes.chunks(300).map(|bytes| fuzz_protocol(bytes).unwrap()).sum();
    assert!(events > 1_000, "{events}");
}
