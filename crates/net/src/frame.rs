//! Frames: what travels on a connection, checked and bounded before anything is allocated for it.
//!
//! A frame is a header of 16 bytes and a body. All numbers are little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `PCLN` |
//! | 4..6 | protocol version |
//! | 6..8 | kind: 1 a message, 2 a chunk of values |
//! | 8..12 | length of the body |
//! | 12..16 | CRC-32 of the twelve bytes before and, for a message, of the body |
//!
//! The first six bytes stay where they are in every version, so that peers of different versions can say so. Chunks
//! carry no checksum of their own over what TCP has: they are most of the traffic.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The version of the protocol that this build speaks.
pub const PROTOCOL: u16 = 1;

/// The longest body of a message, in bytes.
pub const MESSAGE_LIMIT: usize = 64 * 1024;

/// The longest body of a chunk, in bytes.
pub const CHUNK_LIMIT: usize = 256 * 1024;

pub(crate) const HEADER: usize = 16;

const MAGIC: [u8; 4] = *b"PCLN";
const CHECKED: usize = 12;

/// What is wrong with bytes that should be a frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The peer is no Paceline.
    #[error("the peer does not speak Paceline's protocol: its frame begins with {0:02x?}")]
    Foreign([u8; 4]),
    /// The peer is another Paceline.
    #[error("the peer speaks protocol {theirs}, this side speaks {PROTOCOL}: use the same release on both")]
    OtherProtocol {
        /// The peer's version.
        theirs: u16,
    },
    /// No such kind.
    #[error("a frame of unknown kind {0}")]
    Kind(u16),
    /// The body is longer than any may be.
    #[error("a frame of {length} bytes, where {limit} are allowed")]
    TooLong {
        /// The announced length.
        length: usize,
        /// The longest allowed.
        limit: usize,
    },
    /// The bytes are not those that were sent.
    #[error("a damaged frame: checksum {found:08x} instead of {expected:08x}")]
    Damaged {
        /// What the bytes give.
        found: u32,
        /// What the frame says.
        expected: u32,
    },
    /// The body is no message of this protocol.
    #[error("a frame that holds no message known here")]
    Meaningless,
    /// Another kind of frame was due.
    #[error("expected {expected}, got {found}")]
    Unexpected {
        /// What was due.
        expected: &'static str,
        /// What came.
        found: &'static str,
    },
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// What a frame holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A typed message.
    Message,
    /// A stretch of parameters or gradient.
    Chunk,
}

impl Kind {
    const fn code(self) -> u16 {
        match self {
            Kind::Message => 1,
            Kind::Chunk => 2,
        }
    }

    fn limit(self) -> usize {
        match self {
            Kind::Message => MESSAGE_LIMIT,
            Kind::Chunk => CHUNK_LIMIT,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Message => "a message",
            Kind::Chunk => "a chunk of values",
        }
    }
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// What follows.
    pub kind: Kind,
    /// Its length in bytes, within the limit of its kind.
    pub length: usize,
    check: u32,
}

impl FrameHeader {
    /// The header of a chunk of `length` bytes.
    pub(crate) fn of_chunk(length: usize) -> [u8; HEADER] {
        head(Kind::Chunk, length, &[])
    }

    /// Says whether `bytes`, however few, can be the beginning of a frame.
    ///
    /// # Errors
    /// [`FrameError::Foreign`] if they can't.
    pub(crate) fn check_beginning(bytes: &[u8]) -> Result<(), FrameError> {
        if MAGIC.iter().zip(bytes).all(|(expected, found)| expected == found) {
            return Ok(());
        }
        let mut found = [0; 4];
        found.iter_mut().zip(bytes).for_each(|(found, byte)| *found = *byte);
        Err(FrameError::Foreign(found))
    }

    /// Reads a header.
    ///
    /// # Errors
    /// If the bytes are no header of this protocol, or announce more than is allowed.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, FrameError> {
        let (head, check) = bytes.split_at(CHECKED);
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = *head else { unreachable!("twelve bytes") };
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(FrameError::Foreign(magic));
        }
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != PROTOCOL {
            return Err(FrameError::OtherProtocol { theirs });
        }
        let code = u16::from_le_bytes([k0, k1]);
        let kinds = [Kind::Message, Kind::Chunk];
        let kind = kinds.into_iter().find(|kind| kind.code() == code).ok_or(FrameError::Kind(code))?;
        let (length, limit) = (u32::from_le_bytes([l0, l1, l2, l3]) as usize, kind.limit());
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        let check = u32::from_le_bytes(check.try_into().expect("four bytes are left"));
        let header = FrameHeader { kind, length, check };
        if kind == Kind::Chunk {
            header.verify(head, &[])?;
        }
        Ok(header)
    }

    fn verify(&self, head: &[u8], body: &[u8]) -> Result<(), FrameError> {
        let found = checksum(head, body);
        if found == self.check { Ok(()) } else { Err(FrameError::Damaged { found, expected: self.check }) }
    }

    /// Reads the message whose header and body these are.
    ///
    /// # Errors
    /// If the bytes were changed on the way or hold no message.
    pub fn message<M: DeserializeOwned>(&self, header: &[u8; HEADER], body: &[u8]) -> Result<M, FrameError> {
        self.verify(&header[..CHECKED], body)?;
        match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            _ => Err(FrameError::Meaningless),
        }
    }
}

/// The message at the beginning of `bytes`, and how many of them it takes; `None` if it is not all there yet.
///
/// # Errors
/// If they can't become a message.
pub fn first_message<M: DeserializeOwned>(bytes: &[u8]) -> Result<Option<(M, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let header = FrameHeader::decode(head)?;
    if header.kind == Kind::Chunk {
        return Err(FrameError::Unexpected { expected: Kind::Message.name(), found: Kind::Chunk.name() });
    }
    let Some(body) = rest.get(..header.length) else { return Ok(None) };
    Ok(Some((header.message(head, body)?, HEADER + header.length)))
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

fn head(kind: Kind, length: usize, body: &[u8]) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&PROTOCOL.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.code().to_le_bytes());
    bytes[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    let check = checksum(&bytes[..CHECKED], body);
    bytes[CHECKED..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// A message as a whole frame.
///
/// # Errors
/// [`FrameError::TooLong`] if the message does not fit one.
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let frame = postcard::to_extend(message, vec![0; HEADER]).map_err(|_| FrameError::Meaningless)?;
    let mut frame: Vec<u8> = frame;
    let length = frame.len() - HEADER;
    if length > MESSAGE_LIMIT {
        return Err(FrameError::TooLong { length, limit: MESSAGE_LIMIT });
    }
    let header = head(Kind::Message, length, &frame[HEADER..]);
    frame[..HEADER].copy_from_slice(&header);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToServer, ToWorker};
    use proptest::prelude::*;

    fn decode<M: DeserializeOwned>(frame: &[u8]) -> Result<M, FrameError> {
        let (head, body) = frame.split_first_chunk::<HEADER>().expect("the frame has a header");
        FrameHeader::decode(head)?.message(head, body)
    }

    /// What a reader makes of bytes that come bit by bit: the messages, and the error that ended it.
    fn read(bytes: &[u8], portion: usize) -> (Vec<ToServer>, Option<FrameError>) {
        let (mut pending, mut messages) = (Vec::new(), Vec::new());
        for part in bytes.chunks(portion) {
            pending.extend_from_slice(part);
            loop {
                match first_message(&pending) {
                    Ok(Some((message, length))) => {
                        messages.push(message);
                        pending.drain(..length);
                    }
                    Ok(None) => break,
                    Err(error) => return (messages, Some(error)),
                }
            }
            assert!(pending.len() < HEADER + MESSAGE_LIMIT, "no more is kept than one message needs");
        }
        (messages, None)
    }

    #[test]
    fn peers_that_differ_are_told_so() {
        let frame = encode(&ToServer::Dropped { number: 3 }).unwrap();
        assert_eq!(decode::<ToServer>(&frame), Ok(ToServer::Dropped { number: 3 }));
        let mut other = frame.clone();
        other[4] = 9;
        assert_eq!(decode::<ToServer>(&other), Err(FrameError::OtherProtocol { theirs: 9 }));
        let foreign = *b"GET / HTTP/1.1\r\n";
        assert_eq!(FrameHeader::decode(&foreign), Err(FrameError::Foreign(*b"GET ")));
        assert_eq!(FrameHeader::check_beginning(&frame[..3]), Ok(()));
        assert_eq!(FrameHeader::check_beginning(b"PC!"), Err(FrameError::Foreign(*b"PC!\0")));
    }

    #[test]
    fn too_long_is_refused_on_both_sides() {
        let long = ToWorker::Refuse { reason: "x".repeat(MESSAGE_LIMIT), again: false };
        assert!(matches!(encode(&long), Err(FrameError::TooLong { .. })));
        let mut chunk = FrameHeader::of_chunk(CHUNK_LIMIT);
        assert_eq!(FrameHeader::decode(&chunk).unwrap().length, CHUNK_LIMIT);
        chunk[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            FrameHeader::decode(&chunk),
            Err(FrameError::TooLong { length: u32::MAX as usize, limit: CHUNK_LIMIT })
        );
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), HEADER..200)) {
            let _ = decode::<ToServer>(&bytes);
            let _ = decode::<ToWorker>(&bytes);
        }

        #[test]
        fn any_body_with_a_right_checksum_is_a_message_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let frame = [head(Kind::Message, body.len(), &body).to_vec(), body].concat();
            for error in [decode::<ToServer>(&frame).err(), decode::<ToWorker>(&frame).err()].into_iter().flatten() {
                prop_assert_eq!(error, FrameError::Meaningless);
            }
        }

        #[test]
        fn mutated_streams_give_messages_up_to_the_first_error(
            numbers in prop::collection::vec(any::<u64>(), 1..20),
            mutations in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 0..4),
            portion in 1..100_usize,
        ) {
            let frames: Vec<_> = numbers.iter().map(|&number| encode(&ToServer::Dropped { number }).unwrap()).collect();
            let sound = frames.concat();
            prop_assert_eq!(read(&sound, portion).0.len(), numbers.len());
            let mut stream = sound.clone();
            for (place, byte, kind) in &mutations {
                let index = place.index(stream.len());
                match kind {
                    0 => stream[index] = *byte,
                    1 => stream.insert(index, *byte),
                    _ => { stream.remove(index); }
                }
            }
            let (messages, _) = read(&stream, portion);
            let intact = sound.iter().zip(&stream).take_while(|(a, b)| a == b).count();
            let ends = frames.iter().scan(0, |end, frame| { *end += frame.len(); Some(*end) });
            let untouched = ends.take_while(|&end| end <= intact).count();
            prop_assert!((untouched..=numbers.len()).contains(&messages.len()), "{} of {untouched}", messages.len());
            for (message, number) in messages.iter().zip(&numbers) {
                prop_assert_eq!(message, &ToServer::Dropped { number: *number });
            }
        }

        #[test]
        fn any_flipped_bit_is_noticed(number: u64, text in ".{0,40}", place: prop::sample::Index, bit in 0..8u32) {
            let frames = [
                encode(&ToServer::Dropped { number }).unwrap(),
                encode(&ToServer::Failed { reason: text }).unwrap(),
            ];
            for mut frame in frames {
                let index = place.index(frame.len());
                frame[index] ^= 1 << bit;
                prop_assert!(decode::<ToServer>(&frame).is_err());
            }
        }
    }
}
