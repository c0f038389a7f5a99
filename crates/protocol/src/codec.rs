//! Encoding and decoding the vectors of one direction of a connection, chunk by chunk.
//!
//! An `int8` chunk has blocks of [`INT8_BLOCK`] values: a scale, the block's largest absolute value over 127, as a
//! little-endian `f32`, then a byte per value. Rounding is off by half a scale at most, and what it loses is not lost for good:
//!
//! - **Updates**, which are gradients and model differences, are sent with *error feedback*: the sender keeps the rounding
//!   errors, the residual, and adds them to its next update.
//! - **Models** are sent as differences from a *reference*, the model that the receiver has. The sender computes what the
//!   receiver makes of them, so every difference also corrects the last rounding error.
//!
//! Both ends change their reference block by block with the same operations. So they agree after every chunk, also if a
//! vector is not sent to its end or not wanted by the receiver.
//!
//! If a value of a block is not finite, the block's scale is NaN, and so are all its values at the receiver, who can tell
//! that the vector is broken. Such a block changes neither residual nor reference.

use std::ops::Range;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::payload::{INT8_BLOCK, PayloadFormat, SCALE_BYTES};

/// The bytes of a chunk, aligned for every format.
#[derive(Debug, Default)]
pub struct EncodedChunk {
    pairs: Vec<u16>,
    length: usize,
}

impl EncodedChunk {
    /// Changes the number of bytes.
    pub fn resize(&mut self, length: usize) {
        self.pairs.resize(length.div_ceil(2), 0);
        self.length = length;
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pairs)[..self.length]
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pairs)[..self.length]
    }
}

/// What the vectors of one direction are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VectorKind {
    Update,
    Model,
}

/// One end of one direction of a connection: the sender's or the receiver's.
#[derive(Debug)]
pub struct Codec {
    kind: VectorKind,
    /// The residual or the reference, once `int8` was used. It starts with zeros. Receivers of updates have none.
    memory: Vec<f32>,
}

impl Codec {
    /// For gradients and model differences, from worker to server.
    pub fn of_updates() -> Self {
        Codec { kind: VectorKind::Update, memory: Vec::new() }
    }

    /// For models, from server to worker.
    pub fn of_models() -> Self {
        Codec { kind: VectorKind::Model, memory: Vec::new() }
    }

    /// Encodes a range of a vector.
    pub fn encode(&mut self, format: PayloadFormat, vector: &[f32], range: Range<usize>, chunk: &mut EncodedChunk) {
        let values = &vector[range.clone()];
        chunk.resize(format.bytes(values.len()));
        let bytes = chunk.bytes_mut();
        match format {
            PayloadFormat::F32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
            PayloadFormat::F16 => bytemuck::cast_slice_mut::<_, f16>(bytes).convert_from_f32_slice(values),
            PayloadFormat::Bf16 => bytemuck::cast_slice_mut::<_, bf16>(bytes).convert_from_f32_slice(values),
            PayloadFormat::Int8 => {
                self.memory.resize(vector.len(), 0.0);
                let memory = self.memory[range].chunks_mut(INT8_BLOCK);
                let blocks = bytes.chunks_mut(SCALE_BYTES + INT8_BLOCK);
                for ((block, values), memory) in blocks.zip(values.chunks(INT8_BLOCK)).zip(memory) {
                    encode_block(self.kind, values, memory, block);
                }
            }
        }
    }

    /// Decodes a range of a vector of `length` values. Without `values` nobody wants them, but they count.
    pub fn decode(
        &mut self,
        format: PayloadFormat,
        chunk: &EncodedChunk,
        range: Range<usize>,
        length: usize,
        values: Option<&mut [f32]>,
    ) {
        let bytes = chunk.bytes();
        match (format, values) {
            (PayloadFormat::Int8, values) => self.decode_blocks(bytes, range, length, values),
            (_, None) => {}
            (PayloadFormat::F32, Some(values)) => bytemuck::cast_slice_mut(values).copy_from_slice(bytes),
            (PayloadFormat::F16, Some(values)) => bytemuck::cast_slice::<_, f16>(bytes).convert_to_f32_slice(values),
            (PayloadFormat::Bf16, Some(values)) => bytemuck::cast_slice::<_, bf16>(bytes).convert_to_f32_slice(values),
        }
    }

    fn decode_blocks(&mut self, bytes: &[u8], range: Range<usize>, length: usize, values: Option<&mut [f32]>) {
        let blocks = bytes.chunks(SCALE_BYTES + INT8_BLOCK);
        match (self.kind, values) {
            (VectorKind::Update, None) => {}
            (VectorKind::Update, Some(values)) => {
                for (block, values) in blocks.zip(values.chunks_mut(INT8_BLOCK)) {
                    let (scale, codes) = parts(block);
                    values.iter_mut().zip(codes).for_each(|(value, &code)| *value = decoded(code, scale));
                }
            }
            (VectorKind::Model, mut values) => {
                self.memory.resize(length, 0.0);
                let memory = self.memory[range].chunks_mut(INT8_BLOCK);
                for (index, (block, reference)) in blocks.zip(memory).enumerate() {
                    let (scale, codes) = parts(block);
                    add_to(reference, scale, codes);
                    if let Some(values) = &mut values {
                        let values = &mut values[index * INT8_BLOCK..][..reference.len()];
                        values.copy_from_slice(reference);
                        if !scale.is_finite() {
                            values.fill(f32::NAN);
                        }
                    }
                }
            }
        }
    }
}

/// The scale and the codes of a block.
fn parts(block: &[u8]) -> (f32, &[u8]) {
    let (scale, codes) = block.split_first_chunk::<SCALE_BYTES>().expect("the length of a chunk is checked");
    (f32::from_le_bytes(*scale), codes)
}

fn decoded(code: u8, scale: f32) -> f32 {
    f32::from(code as i8) * scale
}

/// Adds what was decoded to a reference.
fn add_to(reference: &mut [f32], scale: f32, codes: &[u8]) {
    if scale.is_finite() {
        reference.iter_mut().zip(codes).for_each(|(reference, &code)| *reference += decoded(code, scale));
    }
}

fn encode_block(kind: VectorKind, values: &[f32], memory: &mut [f32], block: &mut [u8]) {
    let mut wanted = [0.0; INT8_BLOCK];
    let wanted = &mut wanted[..values.len()];
    for ((wanted, value), memory) in wanted.iter_mut().zip(values).zip(&*memory) {
        *wanted = if kind == VectorKind::Update { value + memory } else { value - memory };
    }
    let (head, codes) = block.split_at_mut(SCALE_BYTES);
    let scale = quantize(wanted, codes);
    head.copy_from_slice(&scale.to_le_bytes());
    match kind {
        VectorKind::Model => add_to(memory, scale, codes),
        VectorKind::Update if scale.is_finite() => {
            for ((residual, wanted), &code) in memory.iter_mut().zip(wanted).zip(&*codes) {
                *residual = *wanted - decoded(code, scale);
            }
        }
        VectorKind::Update => {}
    }
}

/// Rounds values to multiples of a scale, which is returned: NaN if a value is not finite, 0 if all are smaller than any
/// scale.
fn quantize(values: &[f32], codes: &mut [u8]) -> f32 {
    // Without its sign, a number that is larger has larger bits, and one that is not finite the largest.
    let largest = values.iter().fold(0, |largest, value| (value.to_bits() & 0x7fff_ffff).max(largest));
    let largest = f32::from_bits(largest);
    let scale = largest / 127.0;
    if !largest.is_finite() {
        codes.fill(0);
        return f32::NAN;
    }
    if scale < f32::MIN_POSITIVE {
        codes.fill(0);
        return 0.0;
    }
    let factor = 1.0 / scale;
    // The sum of a small number and this one has the number, rounded to the nearest and to even, in its last bits.
    const ROUND: f32 = 12_582_912.0;
    for (code, value) in codes.iter_mut().zip(values) {
        *code = (value * factor + ROUND).to_bits() as u8;
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Several blocks, the last of them shorter.
    const LENGTH: usize = 3 * INT8_BLOCK + 17;

    fn wave(seed: usize, size: f32) -> Vec<f32> {
        (0..LENGTH).map(|index| ((index * 7 + seed * 131) as f32 * 0.37).sin() * size).collect()
    }

    fn whole(codec: &mut Codec, format: PayloadFormat, values: &[f32]) -> EncodedChunk {
        let mut chunk = EncodedChunk::default();
        codec.encode(format, values, 0..values.len(), &mut chunk);
        chunk
    }

    fn received(codec: &mut Codec, format: PayloadFormat, chunk: &EncodedChunk) -> Vec<f32> {
        let mut values = vec![-1.0; LENGTH];
        codec.decode(format, chunk, 0..LENGTH, LENGTH, Some(&mut values));
        values
    }

    #[test]
    fn values_round_trip_within_the_precision_of_the_format() {
        let values = wave(1, 3.0);
        for (format, precision) in
            [(PayloadFormat::F32, 0.0), (PayloadFormat::F16, 1.0 / 2048.0), (PayloadFormat::Bf16, 1.0 / 256.0)]
        {
            let chunk = whole(&mut Codec::of_updates(), format, &values);
            assert_eq!(chunk.bytes().len(), format.bytes(LENGTH));
            for (value, decoded) in values.iter().zip(received(&mut Codec::of_updates(), format, &chunk)) {
                assert!((value - decoded).abs() <= precision * value.abs(), "{format}: {value} became {decoded}");
            }
        }
    }

    /// The definition, value by value, in double precision.
    fn reference_codes(values: &[f32]) -> Vec<f64> {
        let scale = f64::from(values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs())) / 127.0);
        values.iter().map(|value| (f64::from(*value) / scale).round_ties_even() * scale).collect()
    }

    #[test]
    fn int8_rounds_to_127_steps_of_the_largest_value_of_the_block() {
        let values = wave(2, 0.3);
        let chunk = whole(&mut Codec::of_updates(), PayloadFormat::Int8, &values);
        let decoded = received(&mut Codec::of_updates(), PayloadFormat::Int8, &chunk);
        for (values, decoded) in values.chunks(INT8_BLOCK).zip(decoded.chunks(INT8_BLOCK)) {
            for (expected, decoded) in reference_codes(values).iter().zip(decoded) {
                assert!((expected - f64::from(*decoded)).abs() < 1e-6, "{decoded} is not {expected}");
            }
        }
    }

    #[test]
    fn what_is_lost_in_rounding_an_update_is_in_the_next_ones() {
        let (mut sender, mut receiver) = (Codec::of_updates(), Codec::of_updates());
        let (mut sent, mut arrived) = (vec![0.0_f64; LENGTH], vec![0.0_f64; LENGTH]);
        for round in 0..200 {
            let values = wave(round, 1.0);
            let chunk = whole(&mut sender, PayloadFormat::Int8, &values);
            let decoded = received(&mut receiver, PayloadFormat::Int8, &chunk);
            sent.iter_mut().zip(&values).for_each(|(sum, value)| *sum += f64::from(*value));
            arrived.iter_mut().zip(&decoded).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        // Half a scale, and what single precision rounds.
        for (sent, arrived) in sent.iter().zip(&arrived) {
            assert!((sent - arrived).abs() < 0.5 / 127.0 + 1e-3, "{arrived} of {sent}");
        }
    }

    #[test]
    fn a_model_that_stands_still_arrives_ever_more_exactly() {
        let (mut sender, mut receiver) = (Codec::of_models(), Codec::of_models());
        let model = wave(3, 2.0);
        let errors = [(); 3].map(|()| {
            let chunk = whole(&mut sender, PayloadFormat::Int8, &model);
            let decoded = received(&mut receiver, PayloadFormat::Int8, &chunk);
            assert_eq!(decoded, sender.memory, "the sender knows what the receiver has");
            let errors = model.iter().zip(&decoded).map(|(value, decoded)| (value - decoded).abs());
            errors.fold(0.0, f32::max)
        });
        assert!(errors[0] <= 1.0 / 127.0 + 1e-6 && errors[1] <= errors[0] / 254.0 + 1e-6, "{errors:?}");
        assert!(errors[2] < 1e-6, "{errors:?}");
    }

    #[test]
    fn models_that_are_stopped_not_wanted_or_in_another_format_leave_both_ends_in_agreement() {
        let (mut sender, mut receiver) = (Codec::of_models(), Codec::of_models());
        let mut chunk = EncodedChunk::default();
        for round in 0..30 {
            let model = wave(round, 1.0);
            // Every third model is not sent to its end, every fourth is not wanted, every fifth is exact.
            let parts = if round % 3 == 2 { 1 } else { 2 };
            let format = if round % 5 == 4 { PayloadFormat::F32 } else { PayloadFormat::Int8 };
            let mut values = vec![0.0; LENGTH];
            for range in [0..2 * INT8_BLOCK, 2 * INT8_BLOCK..LENGTH].into_iter().take(parts) {
                sender.encode(format, &model, range.clone(), &mut chunk);
                let wanted = (round % 4 != 3).then(|| &mut values[range.clone()]);
                receiver.decode(format, &chunk, range, LENGTH, wanted);
            }
            assert_eq!(sender.memory, receiver.memory);
            if parts == 2 && round % 4 != 3 {
                let precision = if format == PayloadFormat::F32 { 0.0 } else { 2.0 / 127.0 };
                let is_close = |(a, b): (&f32, &f32)| (a - b).abs() <= precision;
                assert!(model.iter().zip(&values).all(is_close), "round {round}");
            }
        }
    }

    #[test]
    fn zeros_and_the_smallest_numbers_stay_small_and_are_not_lost() {
        let tiny = vec![f32::from_bits(1); LENGTH];
        let mut sender = Codec::of_updates();
        let chunk = whole(&mut sender, PayloadFormat::Int8, &tiny);
        assert_eq!(received(&mut Codec::of_updates(), PayloadFormat::Int8, &chunk), [0.0; LENGTH]);
        assert_eq!(sender.memory, tiny);
        let chunk = whole(&mut Codec::of_models(), PayloadFormat::Int8, &[0.0; LENGTH]);
        assert_eq!(received(&mut Codec::of_models(), PayloadFormat::Int8, &chunk), [0.0; LENGTH]);
    }

    #[test]
    fn a_value_that_is_not_finite_breaks_its_block_and_nothing_else() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for codec in [Codec::of_updates, Codec::of_models] {
                let (mut sender, mut receiver) = (codec(), codec());
                let first = whole(&mut sender, PayloadFormat::Int8, &wave(1, 1.0));
                received(&mut receiver, PayloadFormat::Int8, &first);
                let before = sender.memory.clone();
                let mut broken = wave(2, 1.0);
                broken[INT8_BLOCK + 3] = bad;
                let chunk = whole(&mut sender, PayloadFormat::Int8, &broken);
                let decoded = received(&mut receiver, PayloadFormat::Int8, &chunk);
                let block = INT8_BLOCK..2 * INT8_BLOCK;
                assert!(decoded[block.clone()].iter().all(|value| value.is_nan()));
                assert!(decoded[..INT8_BLOCK].iter().chain(&decoded[block.end..]).all(|value| value.is_finite()));
                assert_eq!(sender.memory[block.clone()], before[block]);
                assert!(sender.kind == VectorKind::Update || sender.memory == receiver.memory);
            }
        }
    }

    proptest! {
        #[test]
        fn both_ends_agree_on_any_models(
            models in prop::collection::vec(prop::collection::vec(any::<f32>(), LENGTH), 1..4),
        ) {
            let (mut sender, mut receiver) = (Codec::of_models(), Codec::of_models());
            for model in &models {
                let chunk = whole(&mut sender, PayloadFormat::Int8, model);
                received(&mut receiver, PayloadFormat::Int8, &chunk);
                prop_assert_eq!(&sender.memory, &receiver.memory);
            }
        }
    }
}
