//! Reading ahead: who reads a version from front to back finds what comes next checked and in memory, and so does who reads the same after him.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use stdchk_engine::Workers;
use stdchk_object::{Error, Kind, Result};

use super::locked;
use super::opened::Opened;

/// Bytes that are read together: what a leaf of the tree has.
const BLOCK: u64 = 1 << 20;
/// Blocks that are read before somebody wants them.
const AHEAD: u64 = 4;
/// No more is kept than this: what fits the processor's cache is the fastest.
const KEPT_MAX: usize = 32 << 20;
/// Blocks that somebody has read to their end are kept for others who are close behind, so many.
const USED_MAX: usize = 4;

/// How far a reader has come.
#[derive(Default)]
pub struct Progress {
    next: AtomicU64,
}

impl Progress {
    /// Notes a read; whether it goes on where the last one ended.
    fn goes_on(&self, offset: u64, len: u64) -> bool {
        self.next.swap(offset + len, Ordering::Relaxed) == offset && offset > 0
    }
}

/// Blocks of versions.
pub(super) struct Ahead {
    workers: Arc<Workers>,
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The one that was asked for last is the last.
    blocks: VecDeque<Block>,
    /// Memory of blocks that are gone: new memory is dear.
    spare: Vec<Vec<u8>>,
}

struct Block {
    of: Arc<Opened>,
    number: u64,
    bytes: Arc<OnceLock<Result<Vec<u8>>>>,
    /// Whether somebody who reads from front to back has come to its end.
    is_used: bool,
}

/// Has whoever waits go on, also if the thread that reads panics.
struct Promise(Arc<OnceLock<Result<Vec<u8>>>>);

impl Drop for Promise {
    fn drop(&mut self) {
        let _ = self.0.set(Err(Error::new(Kind::Io, "the thread that read the file has panicked")));
    }
}

impl Ahead {
    /// Blocks of so many bytes, read by these threads.
    pub fn new(workers: Arc<Workers>, memory: usize) -> Ahead {
        let most = (memory.min(KEPT_MAX) / BLOCK as usize).max(1 + AHEAD as usize);
        Ahead { workers, most, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        locked(&self.kept)
    }

    /// Lets everything go.
    pub fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Hands on bytes of a version, which must have them.
    pub fn read(
        &self,
        of: &Arc<Opened>,
        progress: &Progress,
        range: std::ops::Range<u64>,
        give: impl FnOnce(&[u8]),
    ) -> Result<()> {
        let len = range.end - range.start;
        let first = range.start / BLOCK;
        let goes_on = progress.goes_on(range.start, len);
        if goes_on {
            (first..=first + AHEAD)
                .filter(|number| number * BLOCK < of.len())
                .for_each(|number| self.ask(of, number));
        }
        if let Some(block) = self.find(of, first)
            && range.end <= (first + 1) * BLOCK
            && let Ok(bytes) = block.wait()
        {
            give(&bytes[(range.start - first * BLOCK) as usize..][..len as usize]);
            if goes_on && range.end == (first + 1) * BLOCK {
                drop(block);
                self.kept().use_up(of, first);
            }
            return Ok(());
        }
        let mut bytes = vec![0; len as usize];
        of.read_at(range.start, &mut bytes)?;
        give(&bytes);
        Ok(())
    }

    fn find(&self, of: &Arc<Opened>, number: u64) -> Option<Arc<OnceLock<Result<Vec<u8>>>>> {
        let kept = self.kept();
        let is_it = |block: &&Block| block.number == number && Arc::ptr_eq(&block.of, of);
        kept.blocks.iter().rev().find(is_it).map(|block| block.bytes.clone())
    }

    /// Has a block read, unless it is there or will be.
    fn ask(&self, of: &Arc<Opened>, number: u64) {
        let mut kept = self.kept();
        let known =
            kept.blocks.iter().rposition(|block| block.number == number && Arc::ptr_eq(&block.of, of));
        if let Some(at) = known {
            let block = kept.blocks.remove(at).expect("just found");
            return kept.blocks.push_back(block);
        }
        while kept.blocks.len() >= self.most {
            kept.let_go();
        }
        let mut bytes = kept.spare.pop().unwrap_or_default();
        let promise = Promise(Arc::default());
        kept.blocks.push_back(Block { of: of.clone(), number, bytes: promise.0.clone(), is_used: false });
        drop(kept);
        let (of, start) = (of.clone(), number * BLOCK);
        drop(self.workers.ask(move |_| {
            bytes.resize((of.len() - start).min(BLOCK) as usize, 0);
            let read = of.read_at(start, &mut bytes);
            let _ = promise.0.set(read.map(|()| bytes));
            Ok(())
        }));
    }
}

impl Kept {
    /// Notes that a block was read to its end. Memory that was just used is the fastest for what comes next.
    fn use_up(&mut self, of: &Arc<Opened>, number: u64) {
        let is_it = |block: &&mut Block| block.number == number && Arc::ptr_eq(&block.of, of);
        if let Some(block) = self.blocks.iter_mut().find(is_it) {
            block.is_used = true;
        }
        if self.blocks.iter().filter(|block| block.is_used).count() > USED_MAX
            && let Some(at) = self.blocks.iter().position(|block| block.is_used)
        {
            let block = self.blocks.remove(at);
            block.into_iter().for_each(|block| self.spare(block));
        }
    }

    /// Lets the block go that nobody has asked for the longest.
    fn let_go(&mut self) {
        let block = self.blocks.pop_front();
        block.into_iter().for_each(|block| self.spare(block));
    }

    /// Keeps the memory of a block, if nobody reads it any more.
    fn spare(&mut self, block: Block) {
        if let Some(Ok(bytes)) = Arc::into_inner(block.bytes).and_then(OnceLock::into_inner)
            && self.spare.len() < AHEAD as usize
        {
            self.spare.push(bytes);
        }
    }
}
