//! What stdchk would store of a file beside the one before it: pages that differ, as differences where numbers changed a little.

use std::io::Read;
use std::time::Instant;

use stdchk_codec::{Advisor, Prefer, Preference, Press, delta, try_codings, try_delta};
use stdchk_object::error::Context;
use stdchk_object::{Error, Result};

use crate::Input;
use crate::compression::{AT_LEISURE, PIECE, Pressed, RUN};
use crate::similarity::Progress;

/// Pages are compared with those at the same place.
const PAGE: usize = 4096;

/// Codes what of `input` differs from `before`, page by page at the same places, brings it back, and compares. Of what is the same nothing
/// counts.
pub fn successive(before: &Input, input: &Input, progress: Progress) -> Result<Pressed> {
    let what = || format!("cannot study {} beside {}", input.path().display(), before.path().display());
    let (mut old_file, mut new_file) = (before.read().context(what)?, input.read().context(what)?);
    let (mut old, mut new) = (Vec::with_capacity(PIECE), Vec::with_capacity(PIECE));
    let mut coder = Coder::new();
    loop {
        for (file, piece) in [(&mut old_file, &mut old), (&mut new_file, &mut new)] {
            piece.clear();
            file.take(PIECE as u64).read_to_end(piece).context(what)?;
        }
        if new.is_empty() {
            return coder.finish().map_err(|error| error.within(what()));
        }
        coder.add(&new, &old).map_err(|error| error.within(what()))?;
        progress(new.len() as u64);
    }
}

/// Codes pages, run by run, on one thread.
struct Coder {
    advisor: Advisor,
    press: Press,
    /// The pages of the next run, and what they replace.
    new: Vec<u8>,
    old: Vec<u8>,
    sum: Pressed,
}

impl Coder {
    fn new() -> Coder {
        Coder {
            advisor: Advisor::new(Preference::Auto(Prefer::Balanced)),
            press: Press::new(),
            new: Vec::with_capacity(RUN),
            old: Vec::with_capacity(RUN),
            sum: Pressed::default(),
        }
    }

    fn add(&mut self, new: &[u8], old: &[u8]) -> Result<()> {
        for (at, page) in new.chunks(PAGE).enumerate() {
            let begin = (at * PAGE).min(old.len());
            let replaced = &old[begin..(begin + page.len()).min(old.len())];
            if replaced == page {
                continue;
            }
            self.new.extend_from_slice(page);
            // What replaces nothing has nothing to be subtracted from.
            self.old.extend_from_slice(replaced);
            self.old.resize(self.new.len(), 0);
            if self.new.len() >= RUN {
                self.code()?;
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Pressed> {
        self.code()?;
        Ok(self.sum)
    }

    fn code(&mut self) -> Result<()> {
        let (new, old) = (std::mem::take(&mut self.new), std::mem::take(&mut self.old));
        if new.is_empty() {
            return Ok(());
        }
        let begun = Instant::now();
        let clock = || begun.elapsed().as_secs_f64();
        if let Some(prefer) = self.advisor.wants_trial(f64::INFINITY) {
            self.advisor.tried(try_codings(prefer, &mut self.press, &new, &clock)?);
            self.advisor.tried_delta(try_delta(prefer, &mut self.press, &new, &old, 0.0, &clock)?);
        }
        let choice = self.advisor.choose(&AT_LEISURE, true);
        let limit = self.advisor.preference().limit(new.len());
        let mut room = Vec::new();
        let packed = match choice.coding {
            coding if coding.is_none() => None,
            coding if coding.delta => {
                delta::subtract(coding.width(), &new, &old, &mut room);
                self.press.compress(coding, choice.level, &room, limit)?
            }
            coding => self.press.compress(coding, choice.level, &new, limit)?,
        };
        let packed = packed.map(<[u8]>::to_vec);
        let compress_s = clock();
        let begun = Instant::now();
        if let Some(packed) = &packed {
            self.press.decompress(choice.coding, packed, new.len(), &mut room)?;
            if choice.coding.delta {
                delta::add(choice.coding.width(), &mut room, &old);
            }
            if room != new {
                return Err(Error::corrupt("what was subtracted and compressed did not come back"));
            }
        }
        let decompress_s = begun.elapsed().as_secs_f64();
        let left = packed.map_or(new.len(), |packed| packed.len()) as u64;
        self.sum.add(&Pressed { raw: new.len() as u64, packed: left, compress_s, decompress_s });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn study(before: &[u8], now: &[u8]) -> Pressed {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, bytes: &[u8]| {
            let path = folder.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            Input::new(&path, u64::MAX).unwrap()
        };
        successive(&file("before", before), &file("now", now), &|_| {}).unwrap()
    }

    fn numbers(step: f32) -> Vec<u8> {
        // Numbers of all sizes, which bytes tell little of.
        let of = |i: u32| (i.wrapping_mul(2_654_435_761) as f32 / 1e6).sin() * (1.0 + step);
        (0..1 << 20).flat_map(|i| of(i).to_le_bytes()).collect()
    }

    #[test]
    fn numbers_that_change_a_little_leave_little() {
        let done = study(&numbers(0.0), &numbers(1e-6));
        // Some stay what they are.
        assert!(done.raw > 3 << 20 && done.saved() > 0.6, "{done:?}");
    }

    #[test]
    fn only_pages_that_differ_count() {
        let before = numbers(0.0);
        let mut now = before.clone();
        now[5000] ^= 1;
        now.extend([3; 100]);
        let done = study(&before, &now);
        assert_eq!(done.raw, 4096 + 100);
        assert_eq!(study(&before, &before), Pressed::default());
        // A shorter one, and one beside nothing.
        assert_eq!(study(&before, &before[..9000]).raw, 0);
        assert_eq!(study(&[], &before).raw, before.len() as u64);
    }
}
