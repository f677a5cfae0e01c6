//! Bringing blobs back: leaves in parallel, each read, verified and handed on.

use std::collections::VecDeque;
use std::sync::Arc;

use stdchk_object::Result;
use stdchk_object::tree::{Blob, Leaf, Piece};

use crate::buffers::{Buffer, Buffers};
use crate::vault::{LeafAt, Roots, Scratch, Vault};
use crate::workers::{Answer, Workers};

/// Takes the bytes of a blob, in any order and from several threads at once. What is never written is zeros.
pub trait Sink: Send + Sync {
    /// Takes bytes at an offset.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()>;
}

/// Leaves that may be under way at once, for each worker.
const AHEAD: usize = 2;
/// Zeros handed on at once.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// A blob and what is needed to read it.
pub struct Reader<'a> {
    /// Where it lies.
    pub vault: &'a Arc<Vault>,
    /// What its part refers to.
    pub roots: &'a Arc<Roots>,
    /// The blob.
    pub blob: &'a Blob,
    /// Who reads it.
    pub workers: &'a Workers,
}

impl Reader<'_> {
    /// Reads the blob into `sink`. `progress` is told of bytes that are done.
    pub fn restore(&self, sink: &Arc<dyn Sink>, progress: &dyn Fn(u64)) -> Result<()> {
        let sink = sink.clone();
        let job = move |leaf: &Leaf, start, buffer: Buffer| write_data(leaf, start, &buffer, &*sink);
        self.leaves(job, &mut |_, len| {
            progress(len);
            Ok(())
        })
    }

    /// Calls `each` with the blob's bytes, in order and in pieces of bounded size.
    pub fn stream(&self, each: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let job = |leaf: &Leaf, _, mut buffer: Buffer| {
            let mut at = 0;
            for piece in &leaf.pieces {
                let end = at + piece.bytes() as usize;
                if matches!(piece, Piece::Hole(_)) {
                    buffer[at..end].fill(0);
                }
                at = end;
            }
            Ok(buffer)
        };
        self.leaves(job, &mut |buffer, mut len| {
            if let Some(buffer) = buffer {
                return each(&buffer);
            }
            while len > 0 {
                let some = len.min(ZEROS.len() as u64);
                each(&ZEROS[..some as usize])?;
                len -= some;
            }
            Ok(())
        })
    }

    /// Reads all leaves; the workers do `job` with each one's bytes, of which those of holes are undefined. `done` gets
    /// the results in the order of the blob with how many bytes each stands for, and `None` for holes.
    fn leaves<T: Send + 'static>(
        &self,
        job: impl Fn(&Leaf, u64, Buffer) -> Result<T> + Send + Sync + 'static,
        done: &mut dyn FnMut(Option<T>, u64) -> Result<()>,
    ) -> Result<()> {
        let limit = self.workers.count() * AHEAD;
        let buffers = Buffers::new(limit);
        let job = Arc::new(job);
        let mut under_way: VecDeque<(Option<Answer<T>>, u64)> = VecDeque::new();
        let walked = self.vault.walk(self.roots, self.blob, 0..self.blob.len, &mut |start, at, len| {
            if under_way.len() >= limit
                && let Some((answer, len)) = under_way.pop_front()
            {
                done(answer.map(Answer::wait).transpose()?, len)?;
            }
            let answer = (at != LeafAt::Hole).then(|| {
                let (vault, roots, blob) = (self.vault.clone(), self.roots.clone(), self.blob.clone());
                let (job, buffers) = (job.clone(), buffers.clone());
                self.workers.ask(move |_| {
                    let leaf = vault.leaf(&roots, &blob, &at, len)?;
                    let mut buffer = buffers.take(leaf.bytes() as usize);
                    vault.read_leaf(&roots, &leaf, &mut buffer, &mut Scratch::default())?;
                    job(&leaf, start, buffer)
                })
            });
            under_way.push_back((answer, len));
            Ok(())
        });
        // Whatever happened, nothing is left running that still writes into a sink.
        let mut result = walked;
        for (answer, len) in under_way {
            let answer = answer.map(Answer::wait).transpose();
            result = result.and(answer).and_then(|answer| done(answer, len));
        }
        result
    }
}

fn write_data(leaf: &Leaf, start: u64, buffer: &[u8], sink: &dyn Sink) -> Result<()> {
    let (mut at, mut from) = (0usize, 0usize);
    for piece in &leaf.pieces {
        let end = at + piece.bytes() as usize;
        if matches!(piece, Piece::Hole(_)) {
            if at > from {
                sink.write_at(start + from as u64, &buffer[from..at])?;
            }
            from = end;
        }
        at = end;
    }
    if at > from { sink.write_at(start + from as u64, &buffer[from..at]) } else { Ok(()) }
}
