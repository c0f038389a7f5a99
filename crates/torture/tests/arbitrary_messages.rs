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
    let bytes: Vec<u8> = (0..60_000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let events: u64 = bytes.chunks(300).map(|bytes| fuzz_protocol(bytes).unwrap()).sum();
    assert!(events > 1_000, "{events}");
}
