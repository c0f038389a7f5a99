//! Frames: the wire format. Headers are checked and lengths limited before anything is allocated.
//!
//! A frame is a header of 16 bytes and a body. All numbers are little-endian:
//!
//! | bytes | |
//! |---|---|
//! | 0..4 | `PCLN` |
//! | 4..6 | protocol version |
//! | 6..8 | kind: 1 a message, 2 to 5 a chunk of values in `f32`, `f16`, `bf16` or `int8` |
//! | 8..12 | length of the body |
//! | 12..16 | CRC-32 of the twelve bytes before and, for a message, of the body |
//!
//! The first six bytes are the same in every protocol version, so that peers of different versions can report the
//! mismatch. The body of a chunk has no checksum besides that of TCP: chunks are most of the traffic.

use std::io;

use paceline_protocol::{CHUNK_LIMIT, PayloadFormat};
use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// The bytes of the header of every frame.
pub const FRAME_HEADER_BYTES: usize = HEADER_LEN;

/// The version of the wire protocol. Server and worker must have the same.
pub const PROTOCOL_VERSION: u16 = 9;

/// The longest body of a message, in bytes.
pub const MESSAGE_LIMIT: usize = 64 * 1024;

pub(crate) const HEADER_LEN: usize = 16;

const MAGIC: [u8; 4] = *b"PCLN";
const CHECKED_LEN: usize = 12;

/// Why bytes are not a valid frame.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The peer does not speak the Paceline protocol.
    #[error("the peer does not speak the Paceline protocol: its first bytes are {0:02x?}")]
    UnknownMagic([u8; 4]),
    /// The peer has another version of the protocol.
    #[error(
        "protocol version mismatch: the peer has version {theirs}, this side has version {PROTOCOL_VERSION}; use the \
         same release on both"
    )]
    VersionMismatch {
        /// The version of the peer.
        theirs: u16,
    },
    /// The kind is unknown.
    #[error("frame of unknown kind {0}: expected 1 to 5")]
    UnknownKind(u16),
    /// The body is longer than allowed.
    #[error("frame of {length} bytes: expected at most {limit}")]
    TooLong {
        /// The length in the header.
        length: usize,
        /// The limit.
        limit: usize,
    },
    /// The bytes differ from those that were sent.
    #[error("damaged frame: checksum {found:08x}, expected {expected:08x}")]
    ChecksumMismatch {
        /// The checksum of the bytes.
        found: u32,
        /// The checksum in the header.
        expected: u32,
    },
    /// The body is not a message of this protocol.
    #[error("frame with an unknown message")]
    UnknownMessage,
}

impl From<FrameError> for io::Error {
    fn from(error: FrameError) -> Self {
        io::Error::new(io::ErrorKind::InvalidData, error)
    }
}

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A message.
    Message,
    /// A part of the parameters or of a gradient, in this format.
    Chunk(PayloadFormat),
}

impl FrameKind {
    const fn code(self) -> u16 {
        match self {
            FrameKind::Message => 1,
            FrameKind::Chunk(PayloadFormat::F32) => 2,
            FrameKind::Chunk(PayloadFormat::F16) => 3,
            FrameKind::Chunk(PayloadFormat::Bf16) => 4,
            FrameKind::Chunk(PayloadFormat::Int8) => 5,
        }
    }

    fn limit(self) -> usize {
        match self {
            FrameKind::Message => MESSAGE_LIMIT,
            FrameKind::Chunk(_) => CHUNK_LIMIT,
        }
    }
}

/// The header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The length of the body in bytes, within the limit of the kind.
    pub length: usize,
    check: u32,
}

impl FrameHeader {
    /// The header of a chunk of `length` bytes in this format.
    pub(crate) fn of_chunk(format: PayloadFormat, length: usize) -> [u8; HEADER_LEN] {
        head(FrameKind::Chunk(format), length, &[])
    }

    /// Checks that `bytes`, which may be fewer than a header, can be the beginning of a frame.
    ///
    /// # Errors
    /// [`FrameError::UnknownMagic`] if they can't.
    pub(crate) fn check_prefix(bytes: &[u8]) -> Result<(), FrameError> {
        if MAGIC.iter().zip(bytes).all(|(expected, found)| expected == found) {
            return Ok(());
        }
        let mut found = [0; 4];
        found.iter_mut().zip(bytes).for_each(|(found, byte)| *found = *byte);
        Err(FrameError::UnknownMagic(found))
    }

    /// Decodes a header.
    ///
    /// # Errors
    /// If the bytes are not a header of this protocol, or the length exceeds the limit.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let (head, check) = bytes.split_at(CHECKED_LEN);
        let [m0, m1, m2, m3, v0, v1, k0, k1, l0, l1, l2, l3] = *head else { unreachable!("twelve bytes") };
        let magic = [m0, m1, m2, m3];
        if magic != MAGIC {
            return Err(FrameError::UnknownMagic(magic));
        }
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != PROTOCOL_VERSION {
            return Err(FrameError::VersionMismatch { theirs });
        }
        let code = u16::from_le_bytes([k0, k1]);
        let chunks = PayloadFormat::NAMES.map(|(_, format)| FrameKind::Chunk(format));
        let kind = chunks
            .into_iter()
            .chain([FrameKind::Message])
            .find(|kind| kind.code() == code)
            .ok_or(FrameError::UnknownKind(code))?;
        let (length, limit) = (u32::from_le_bytes([l0, l1, l2, l3]) as usize, kind.limit());
        if length > limit {
            return Err(FrameError::TooLong { length, limit });
        }
        let check = u32::from_le_bytes(check.try_into().expect("four bytes are left"));
        let header = FrameHeader { kind, length, check };
        if let FrameKind::Chunk(_) = kind {
            header.verify(head, &[])?;
        }
        Ok(header)
    }

    fn verify(&self, head: &[u8], body: &[u8]) -> Result<(), FrameError> {
        let found = checksum(head, body);
        if found == self.check { Ok(()) } else { Err(FrameError::ChecksumMismatch { found, expected: self.check }) }
    }

    /// Decodes the message of a frame with this header and body.
    ///
    /// # Errors
    /// If the checksum does not match or the body is not a message.
    pub fn message<M: DeserializeOwned>(&self, header: &[u8; HEADER_LEN], body: &[u8]) -> Result<M, FrameError> {
        self.verify(&header[..CHECKED_LEN], body)?;
        match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            _ => Err(FrameError::UnknownMessage),
        }
    }
}

fn checksum(head: &[u8], body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(head);
    hasher.update(body);
    hasher.finalize()
}

fn head(kind: FrameKind, length: usize, body: &[u8]) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes[0..4].copy_from_slice(&MAGIC);
    bytes[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    bytes[6..8].copy_from_slice(&kind.code().to_le_bytes());
    bytes[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    let check = checksum(&bytes[..CHECKED_LEN], body);
    bytes[CHECKED_LEN..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Encodes a message as a frame.
///
/// # Errors
/// [`FrameError::TooLong`] if the message exceeds [`MESSAGE_LIMIT`].
pub fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut frame = unchecked(message)?;
    let length = frame.len() - HEADER_LEN;
    if length > MESSAGE_LIMIT {
        return Err(FrameError::TooLong { length, limit: MESSAGE_LIMIT });
    }
    let header = head(FrameKind::Message, length, &frame[HEADER_LEN..]);
    frame[..HEADER_LEN].copy_from_slice(&header);
    Ok(frame)
}

/// A frame without its header, of any length.
fn unchecked<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    postcard::to_extend(message, vec![0; HEADER_LEN]).map_err(|_| FrameError::UnknownMessage)
}

/// The bytes of the frame of a message, also of one that is too long to be sent; 0 if it can't be encoded.
pub fn frame_bytes<M: Serialize>(message: &M) -> usize {
    unchecked(message).map_or(0, |frame| frame.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_protocol::{ToServer, ToWorker};
    use proptest::prelude::*;

    fn decode<M: DeserializeOwned>(frame: &[u8]) -> Result<M, FrameError> {
        let (head, body) = frame.split_first_chunk::<HEADER_LEN>().expect("the frame has a header");
        FrameHeader::decode(head)?.message(head, body)
    }

    #[test]
    fn another_protocol_is_recognized() {
        let frame = encode(&ToServer::Dropped { number: 3 }).unwrap();
        assert_eq!(decode::<ToServer>(&frame), Ok(ToServer::Dropped { number: 3 }));
        let mut other = frame.clone();
        other[4..6].copy_from_slice(&(PROTOCOL_VERSION + 1).to_le_bytes());
        assert_eq!(decode::<ToServer>(&other), Err(FrameError::VersionMismatch { theirs: PROTOCOL_VERSION + 1 }));
        let foreign = *b"GET / HTTP/1.1\r\n";
        assert_eq!(FrameHeader::decode(&foreign), Err(FrameError::UnknownMagic(*b"GET ")));
        assert_eq!(FrameHeader::check_prefix(&frame[..3]), Ok(()));
        assert_eq!(FrameHeader::check_prefix(b"PC!"), Err(FrameError::UnknownMagic(*b"PC!\0")));
    }

    #[test]
    fn frames_that_are_too_long_are_refused_on_both_sides() {
        let long = ToWorker::Refuse { reason: "x".repeat(MESSAGE_LIMIT), may_rejoin: false };
        assert!(matches!(encode(&long), Err(FrameError::TooLong { .. })));
        let mut chunk = FrameHeader::of_chunk(PayloadFormat::F32, CHUNK_LIMIT);
        assert_eq!(FrameHeader::decode(&chunk).unwrap().length, CHUNK_LIMIT);
        chunk[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(
            FrameHeader::decode(&chunk),
            Err(FrameError::TooLong { length: u32::MAX as usize, limit: CHUNK_LIMIT })
        );
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_a_frame_or_an_error(bytes in prop::collection::vec(any::<u8>(), HEADER_LEN..200)) {
            let _ = decode::<ToServer>(&bytes);
            let _ = decode::<ToWorker>(&bytes);
        }

        #[test]
        fn an_arbitrary_body_is_a_message_or_an_error(body in prop::collection::vec(any::<u8>(), 0..200)) {
            let frame = [head(FrameKind::Message, body.len(), &body).to_vec(), body].concat();
            for error in [decode::<ToServer>(&frame).err(), decode::<ToWorker>(&frame).err()].into_iter().flatten() {
                prop_assert_eq!(error, FrameError::UnknownMessage);
            }
        }

        #[test]
        fn any_flipped_bit_is_detected(number: u64, text in ".{0,40}", place: prop::sample::Index, bit in 0..8u32) {
            let frames = [
                encode(&ToServer::Dropped { number }).unwrap(),
                encode(&ToServer::Leave { reason: text, is_done: false }).unwrap(),
            ];
            for mut frame in frames {
                let index = place.index(frame.len());
                frame[index] ^= 1 << bit;
                prop_assert!(decode::<ToServer>(&frame).is_err());
            }
        }
    }
}
