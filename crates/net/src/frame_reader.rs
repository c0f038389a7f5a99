//! Reads frames as their bytes arrive. Values go straight to their place in memory.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut, Read};
use std::ops::Range;

use paceline_protocol::{Codec, EncodedChunk, PayloadFormat};
use serde::de::DeserializeOwned;

use crate::frame::{FrameError, FrameHeader, FrameKind, HEADER_LEN};
use crate::shared_memory::Region;
use crate::socket::Traffic;

/// The buffer for headers and messages, in bytes. It grows for a longer message. Values bypass it.
const BUFFER_SIZE: usize = 4 * 1024;

/// Bytes read at once of values that nobody wants.
const SKIP_SIZE: usize = 16 * 1024;

/// What has arrived.
#[derive(Debug)]
pub(crate) enum Received<M> {
    Message(M),
    /// A region of the vector that was announced is complete; `None` if the vector is, and its values were not wanted.
    Values(Option<Region>),
    /// The peer has closed the connection between two frames.
    End,
}

/// A vector that arrives in chunks.
#[derive(Debug)]
struct IncomingVector {
    /// Where the values go that are missing, one region after another; none if they are not wanted.
    regions: VecDeque<Region>,
    length: usize,
    /// Values of complete chunks.
    filled: usize,
    /// Where the first of the regions starts.
    start: usize,
}

impl IncomingVector {
    /// Where the chunks that follow may end: they do not cross the end of a region.
    fn limit(&self) -> usize {
        self.regions.front().map_or(self.length, |region| self.start + region.values().len())
    }

    /// The values of the first region in a range of the vector.
    fn values_mut(&mut self, range: Range<usize>) -> Option<&mut [f32]> {
        let start = self.start;
        self.regions.front_mut().map(|region| &mut region.values_mut()[range.start - start..range.end - start])
    }
}

/// A chunk that has arrived in part.
#[derive(Debug, Clone, Copy)]
struct IncomingChunk {
    format: PayloadFormat,
    values: usize,
    bytes: usize,
    filled: usize,
}

/// The frames of one connection. It reads from any source; one that never blocks ends a call with `WouldBlock`, and the
/// next call goes on from there.
#[derive(Debug)]
pub(crate) struct FrameReader {
    buffer: Vec<u8>,
    /// The part of the buffer that has arrived and is not parsed.
    start: usize,
    end: usize,
    vector: Option<IncomingVector>,
    chunk: Option<IncomingChunk>,
    /// A chunk in another format than `f32`.
    encoded: EncodedChunk,
    codec: Codec,
    bytes: u64,
    traffic: Traffic,
}

impl FrameReader {
    pub(crate) fn new(traffic: Traffic, codec: Codec) -> Self {
        let (buffer, encoded) = (vec![0; BUFFER_SIZE], EncodedChunk::default());
        FrameReader { buffer, start: 0, end: 0, vector: None, chunk: None, encoded, codec, bytes: 0, traffic }
    }

    /// The number of bytes that have arrived.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Announces a vector of `length` values in chunks. Messages may arrive between them. The values go to the regions, which
    /// make up that length, or nowhere if there are none.
    pub(crate) fn expect(&mut self, regions: impl IntoIterator<Item = Region>, length: usize) {
        self.vector = Some(IncomingVector { regions: regions.into_iter().collect(), length, filled: 0, start: 0 });
    }

    /// No more chunks of the announced vector follow. Returns the regions that are not complete.
    pub(crate) fn abandon(&mut self) -> Vec<Region> {
        self.vector.take().map_or(Vec::new(), |vector| vector.regions.into())
    }

    /// A region that is complete. `None` in it ends a vector that was not wanted.
    fn complete(&mut self) -> Option<Option<Region>> {
        let vector = self.vector.as_mut().filter(|vector| vector.filled == vector.limit())?;
        let region = vector.regions.pop_front();
        vector.start = vector.filled;
        if vector.regions.is_empty() {
            self.vector = None;
        }
        Some(region)
    }

    /// The next message or complete vector.
    pub(crate) fn next<M: DeserializeOwned>(&mut self, source: &mut impl Read) -> io::Result<Received<M>> {
        loop {
            if let Some(chunk) = self.chunk {
                self.fill(chunk, source)?;
                continue;
            }
            if let Some(region) = self.complete() {
                return Ok(Received::Values(region));
            }
            if let Some(message) = self.parse()? {
                return Ok(Received::Message(message));
            }
            if self.chunk.is_none() && self.read_more(source)? == 0 {
                return match (self.vector.is_some(), self.start == self.end) {
                    (false, true) => Ok(Received::End),
                    (true, _) => Err(closed_inside("a gradient or model")),
                    (false, false) => Err(closed_inside("a message")),
                };
            }
        }
    }

    /// Reads and forgets what arrives. Returns the number of bytes; 0 means the end.
    pub(crate) fn skip(&mut self, source: &mut impl Read) -> io::Result<usize> {
        (self.start, self.end) = (0, 0);
        self.read_more(source)
    }

    /// Parses the frame at the beginning of the buffer. Of a chunk it takes the header only.
    fn parse<M: DeserializeOwned>(&mut self) -> io::Result<Option<M>> {
        let arrived = &self.buffer[self.start..self.end];
        // A peer with another protocol may send fewer bytes than a header.
        FrameHeader::check_prefix(arrived)?;
        let Some((head, rest)) = arrived.split_first_chunk::<HEADER_LEN>() else { return Ok(None) };
        let header = FrameHeader::decode(head)?;
        if let FrameKind::Chunk(format) = header.kind {
            let vector = self.vector.as_ref().ok_or_else(|| invalid("chunk of values outside a gradient or model"))?;
            let (bytes, missing) = (header.length, vector.limit() - vector.filled);
            let Some(values) = format.values(bytes).filter(|values| (1..=missing).contains(values)) else {
                return Err(FrameError::TooLong { length: bytes, limit: format.bytes(missing) }.into());
            };
            self.start += HEADER_LEN;
            self.chunk = Some(IncomingChunk { format, values, bytes, filled: 0 });
            return Ok(None);
        }
        match rest.get(..header.length) {
            Some(body) => {
                let message = header.message(head, body)?;
                self.start += HEADER_LEN + header.length;
                Ok(Some(message))
            }
            None => {
                let missing = HEADER_LEN + header.length - arrived.len();
                self.make_room(missing);
                Ok(None)
            }
        }
    }

    /// Moves what has arrived to the beginning of the buffer, and makes room for this many bytes more.
    fn make_room(&mut self, missing: usize) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        self.buffer.resize(self.buffer.len().max(self.end + missing), 0);
    }

    /// Reads into the buffer. Returns the number of bytes; 0 means the end.
    fn read_more(&mut self, source: &mut impl Read) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            // A longer message is over.
            self.buffer.truncate(BUFFER_SIZE);
            self.buffer.shrink_to(BUFFER_SIZE);
        } else if self.end == self.buffer.len() {
            self.make_room(HEADER_LEN);
        }
        let count = source.read(&mut self.buffer[self.end..])?;
        self.end += count;
        self.bytes += count as u64;
        self.traffic.add(count);
        Ok(count)
    }

    /// Reads more of a chunk, and in the same call the next frame's header, if it has arrived.
    fn fill(&mut self, chunk: IncomingChunk, source: &mut impl Read) -> io::Result<()> {
        let vector = self.vector.as_mut().expect("a chunk is part of a vector");
        let values = vector.filled..vector.filled + chunk.values;
        let mut skipped;
        let missing: &mut [u8] = match (vector.values_mut(values.clone()), chunk.format) {
            (Some(wanted), PayloadFormat::F32) => &mut bytemuck::cast_slice_mut(wanted)[chunk.filled..],
            (None, PayloadFormat::F32) => {
                skipped = [0; SKIP_SIZE];
                &mut skipped[..(chunk.bytes - chunk.filled).min(SKIP_SIZE)]
            }
            _ => {
                self.encoded.resize(chunk.bytes);
                &mut self.encoded.bytes_mut()[chunk.filled..]
            }
        };
        let buffered = self.end - self.start;
        let count = if buffered > 0 {
            let count = buffered.min(missing.len());
            missing[..count].copy_from_slice(&self.buffer[self.start..self.start + count]);
            self.start += count;
            count
        } else {
            let asked = missing.len();
            let read = source.read_vectored(&mut [IoSliceMut::new(missing), IoSliceMut::new(&mut self.buffer)])?;
            if read == 0 {
                return Err(closed_inside("a gradient or model"));
            }
            (self.start, self.end) = (0, read.saturating_sub(asked));
            self.bytes += read as u64;
            self.traffic.add(read);
            read.min(asked)
        };
        let filled = chunk.filled + count;
        if filled < chunk.bytes {
            self.chunk = Some(IncomingChunk { filled, ..chunk });
            return Ok(());
        }
        self.chunk = None;
        vector.filled = values.end;
        if chunk.format != PayloadFormat::F32 {
            let length = vector.length;
            let wanted = vector.values_mut(values.clone());
            self.codec.decode(chunk.format, &self.encoded, values, length, wanted);
        }
        Ok(())
    }
}

/// Reads all frames in `bytes`, for the fuzz targets. Every message announces a vector of `length` values. Returns the
/// number of messages.
///
/// # Errors
/// If the bytes are not frames.
pub fn read_frames<M: DeserializeOwned>(mut bytes: &[u8], length: usize) -> io::Result<usize> {
    let (mut reader, mut messages) = (FrameReader::new(Traffic::default(), Codec::of_models()), 0);
    loop {
        match reader.next::<M>(&mut bytes)? {
            Received::Message(_) => {
                messages += 1;
                reader.expect(None, length);
            }
            Received::Values(_) => {}
            Received::End => return Ok(messages),
        }
    }
}

/// The error for a message that breaks the protocol.
pub(crate) fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

fn closed_inside(place: &str) -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, format!("connection closed in the middle of {place}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{self, MESSAGE_LIMIT};
    use paceline_core::Version;
    use paceline_protocol::{CHUNK_LIMIT, ToServer, ToWorker};
    use proptest::prelude::*;

    const LENGTH: usize = 100;

    /// Bytes that arrive in portions, with a pause after each.
    struct Portions<'a> {
        bytes: &'a [u8],
        portion: usize,
        pauses: bool,
    }

    impl Read for Portions<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.pauses = !self.pauses;
            if self.pauses && !self.bytes.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let mut next = &self.bytes[..self.portion.min(self.bytes.len())];
            let count = next.read(into)?;
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    /// What a reader makes of bytes that arrive in portions, up to the first error. Every message but a heartbeat
    /// announces a vector.
    fn read(bytes: &[u8], portion: usize, keep: bool) -> (Vec<ToServer>, Vec<Vec<f32>>, Option<String>) {
        let mut source = Portions { bytes, portion, pauses: false };
        let mut reader = FrameReader::new(Traffic::default(), Codec::of_updates());
        let (mut messages, mut vectors) = (Vec::new(), Vec::new());
        loop {
            match reader.next(&mut source) {
                Ok(Received::Message(message)) => {
                    if !matches!(message, ToServer::Heartbeat { .. }) {
                        let region = keep.then(|| Region::private(LENGTH).unwrap());
                        reader.expect(region, LENGTH);
                    }
                    messages.push(message);
                }
                Ok(Received::Values(region)) => {
                    vectors.push(region.map_or(Vec::new(), |region| region.values().to_vec()));
                }
                Ok(Received::End) => return (messages, vectors, None),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return (messages, vectors, Some(error.to_string())),
            }
            assert!(reader.buffer.len() <= HEADER_LEN + MESSAGE_LIMIT, "no more is buffered than one message");
        }
    }

    /// Messages, each followed by a vector in chunks with a heartbeat between them.
    fn stream(numbers: &[u64], payload: PayloadFormat, chunk: usize) -> (Vec<u8>, Vec<Vec<f32>>) {
        let (mut bytes, mut vectors) = (Vec::new(), Vec::new());
        for &number in numbers {
            bytes.extend(frame::encode(&ToServer::Dropped { number }).unwrap());
            // Exact in every format.
            let values: Vec<f32> = (0..LENGTH).map(|index| (index as u64 + number % 7) as f32).collect();
            for part in values.chunks(chunk) {
                let mut encoded = EncodedChunk::default();
                Codec::of_updates().encode(payload, part, 0..part.len(), &mut encoded);
                bytes.extend(FrameHeader::of_chunk(payload, encoded.bytes().len()));
                bytes.extend(encoded.bytes());
                bytes.extend(frame::encode(&ToServer::Heartbeat { progress: number }).unwrap());
            }
            vectors.push(values);
        }
        (bytes, vectors)
    }

    const FORMATS: [PayloadFormat; 3] = [PayloadFormat::F32, PayloadFormat::F16, PayloadFormat::Bf16];

    proptest! {
        #[test]
        fn frames_arrive_whole_whatever_the_portions(
            numbers in prop::collection::vec(any::<u64>(), 0..6),
            payload in prop::sample::select(FORMATS.to_vec()),
            (chunk, portion) in (1..=LENGTH, 1..5_000_usize),
            keep: bool,
        ) {
            let (bytes, expected) = stream(&numbers, payload, chunk);
            let (messages, vectors, error) = read(&bytes, portion, keep);
            prop_assert_eq!(error, None);
            prop_assert_eq!(messages.len(), numbers.len() * (1 + LENGTH.div_ceil(chunk)));
            prop_assert_eq!(vectors, if keep { expected } else { vec![Vec::new(); numbers.len()] });
        }

        #[test]
        fn mutated_streams_yield_messages_up_to_the_first_error(
            numbers in prop::collection::vec(any::<u64>(), 1..20),
            mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..4),
            portion in 1..100_usize,
        ) {
            let heartbeat = |&progress: &u64| frame::encode(&ToServer::Heartbeat { progress }).unwrap();
            let frames: Vec<_> = numbers.iter().map(heartbeat).collect();
            let sound = frames.concat();
            let mut bytes = sound.clone();
            for (place, byte, kind) in &mutations {
                let index = place.index(bytes.len());
                match kind {
                    0 => bytes[index] = *byte,
                    1 => bytes.insert(index, *byte),
                    _ => { bytes.remove(index); }
                }
            }
            let (messages, ..) = read(&bytes, portion, true);
            let intact = sound.iter().zip(&bytes).take_while(|(a, b)| a == b).count();
            let ends = frames.iter().scan(0, |end, frame| { *end += frame.len(); Some(*end) });
            let untouched = ends.take_while(|&end| end <= intact).count();
            prop_assert!((untouched..=numbers.len()).contains(&messages.len()), "{} of {untouched}", messages.len());
            for (message, progress) in messages.iter().zip(&numbers) {
                prop_assert_eq!(message, &ToServer::Heartbeat { progress: *progress });
            }
        }
    }

    #[test]
    fn a_long_message_grows_the_buffer_for_a_while() {
        let reason = "x".repeat(MESSAGE_LIMIT - 100);
        let long = frame::encode(&ToWorker::Finished { reason, version: Version(0), buffer: None }).unwrap();
        let bytes = [long.clone(), long, frame::encode(&ToWorker::Continue { number: 1 }).unwrap()].concat();
        let (mut reader, mut source) = (FrameReader::new(Traffic::default(), Codec::of_models()), bytes.as_slice());
        for _ in 0..3 {
            assert!(matches!(reader.next::<ToWorker>(&mut source), Ok(Received::Message(_))));
        }
        assert!(matches!(reader.next::<ToWorker>(&mut source), Ok(Received::End)));
        assert_eq!(reader.buffer.len(), BUFFER_SIZE);
        assert_eq!(reader.bytes(), bytes.len() as u64);
    }

    #[test]
    fn chunks_that_do_not_fit_and_truncated_streams_are_errors() {
        let announced = |chunk: usize, sent: usize| {
            let mut bytes = frame::encode(&ToServer::Dropped { number: 0 }).unwrap();
            bytes.extend(FrameHeader::of_chunk(PayloadFormat::F32, chunk));
            bytes.extend(vec![0; sent]);
            read(&bytes, usize::MAX, true).2.unwrap()
        };
        assert_eq!(announced(404, 404), "frame of 404 bytes: expected at most 400");
        assert_eq!(announced(3, 3), "frame of 3 bytes: expected at most 400");
        assert_eq!(announced(0, 0), "frame of 0 bytes: expected at most 400");
        assert_eq!(announced(8, 7), "connection closed in the middle of a gradient or model");
        assert_eq!(announced(8, 8), "connection closed in the middle of a gradient or model");
        let message = frame::encode(&ToServer::Dropped { number: 0 }).unwrap();
        let cut = read(&message[..17], 1, true).2.unwrap();
        assert_eq!(cut, "connection closed in the middle of a message");
        let chunk = [FrameHeader::of_chunk(PayloadFormat::F32, CHUNK_LIMIT).to_vec(), vec![0; 8]].concat();
        let lone = read(&chunk, 7, true).2.unwrap();
        assert_eq!(lone, "chunk of values outside a gradient or model");
    }
}
