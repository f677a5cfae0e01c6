//! The bytes between the processes of a pool, as `docs/WIRE.md` has them.

mod channel;
mod hello;
mod key;
mod link;
mod question;
#[cfg(test)]
mod tests;
mod tls;

pub use channel::{Channel, Frame};
pub use key::{Key, Protection};
pub use link::{TcpLink, connect, listen};
pub use question::{
    ANSWER, BUSY, Load, Offered, Question, REFUSAL, Report, STALE, STILL, decode_refusal, encode_refusal,
    question_word,
};
