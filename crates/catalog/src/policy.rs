//! What is settled for an application: which of its checkpoints are kept, and how it is saved.

use stdchk_object::Result;
use stdchk_object::member::{Chunking, Preferred};
use stdchk_object::pack::{Codec, Coding};
use stdchk_object::wire::{Reader, Writer};

/// How new bytes are coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Wanted {
    /// By measuring, with this put first.
    Prefer(Preferred),
    /// Always so, at this level of the compressor.
    Fixed(Coding, i8),
}

/// How an application is saved where whoever saves it says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Saving {
    /// How members are cut into chunks; by looking at the data where nothing is settled.
    pub chunking: Option<Chunking>,
    /// How new bytes are coded; by measuring where nothing is settled.
    pub coding: Option<Wanted>,
}

impl Saving {
    fn encode(&self, out: &mut Writer) {
        match self.chunking {
            None => out.u8(0),
            Some(chunking) => chunking.encode(out),
        }
        match self.coding {
            None => out.u8(0),
            Some(Wanted::Prefer(preferred)) => {
                out.u8(1);
                out.u8(preferred as u8);
            }
            Some(Wanted::Fixed(coding, level)) => {
                out.u8(2);
                out.raw(&coding.encode());
                out.zigzag(i64::from(level));
            }
        }
    }

    fn decode(reader: &mut Reader) -> Result<Saving> {
        let chunking = match reader.clone().u8()? {
            0 => reader.u8().map(|_| None)?,
            _ => Some(Chunking::decode(reader)?),
        };
        let coding = match reader.u8()? {
            0 => None,
            1 => {
                let preferred =
                    Preferred::decode(reader.u8()?).filter(|&preferred| preferred != Preferred::Given);
                Some(Wanted::Prefer(preferred.ok_or_else(|| reader.corrupt("unknown preference"))?))
            }
            2 => {
                let coding = Coding::decode(reader.u8()?, reader.u8()?);
                let coding = coding.ok_or_else(|| reader.corrupt("unknown coding"))?;
                let level =
                    i8::try_from(reader.zigzag()?).map_err(|_| reader.corrupt("a level out of range"))?;
                Some(Wanted::Fixed(coding, level))
            }
            _ => return Err(reader.corrupt("unknown way to code")),
        };
        Ok(Saving { chunking, coding })
    }

    fn words(&self, words: &mut Vec<String>) {
        words.extend(self.chunking.map(|chunking| format!("chunking={chunking}")));
        words.extend(self.coding.map(|coding| coding.to_string()));
    }
}

impl std::fmt::Display for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Wanted::Prefer(Preferred::Time) => f.write_str("prefer=time"),
            Wanted::Prefer(Preferred::Space) => f.write_str("prefer=space"),
            Wanted::Prefer(_) => f.write_str("prefer=balanced"),
            Wanted::Fixed(coding, level) if coding.codec == Codec::Zstd => {
                write!(f, "compress={coding}:{level}")
            }
            Wanted::Fixed(coding, _) => write!(f, "compress={coding}"),
        }
    }
}

/// What to keep, and how to save. A checkpoint goes when no rule keeps it. The newest one is never dropped by a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Policy {
    /// Keep this many of the newest. `None` with no other rule: keep all.
    pub keep_last: Option<u32>,
    /// Keep checkpoints whose step is a multiple of this.
    pub keep_every: Option<u64>,
    /// Whatever the other rules keep goes when it is older than this, in seconds.
    pub purge_after_s: Option<u64>,
    /// How it is saved.
    pub saving: Saving,
}

/// What a policy looks at.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The step.
    pub step: u64,
    /// Its place in commit order.
    pub sequence: u64,
    /// When it was committed, in nanoseconds since 1970.
    pub created_ns: i64,
}

impl Policy {
    /// Whether it may drop anything.
    pub fn drops(&self) -> bool {
        self.keep_last.is_some() || self.keep_every.is_some() || self.purge_after_s.is_some()
    }

    /// Keep everything.
    pub const KEEP_ALL: Policy = Policy {
        keep_last: None,
        keep_every: None,
        purge_after_s: None,
        saving: Saving { chunking: None, coding: None },
    };

    /// The indexes of the candidates that go, given the time now.
    pub fn dropped(&self, candidates: &[Candidate], now_ns: i64) -> Vec<usize> {
        let mut newest_first: Vec<usize> = (0..candidates.len()).collect();
        newest_first.sort_by_key(|&i| std::cmp::Reverse(candidates[i].sequence));
        let mut dropped: Vec<usize> = newest_first
            .into_iter()
            .enumerate()
            .skip(1)
            .filter(|&(age_rank, i)| !self.keeps(&candidates[i], age_rank, now_ns))
            .map(|(_, i)| i)
            .collect();
        dropped.sort_unstable();
        dropped
    }

    fn keeps(&self, candidate: &Candidate, age_rank: usize, now_ns: i64) -> bool {
        if let Some(seconds) = self.purge_after_s {
            let age_ns = i128::from(now_ns) - i128::from(candidate.created_ns);
            if age_ns > i128::from(seconds) * 1_000_000_000 {
                return false;
            }
        }
        let last = self.keep_last.is_some_and(|count| age_rank < count as usize);
        let every = self.keep_every.is_some_and(|every| every > 0 && candidate.step.is_multiple_of(every));
        last || every || (self.keep_last.is_none() && self.keep_every.is_none())
    }

    /// Writes the policy.
    pub fn encode(&self, out: &mut Writer) {
        for rule in [self.keep_last.map(u64::from), self.keep_every, self.purge_after_s] {
            out.u8(u8::from(rule.is_some()));
            out.varint(rule.unwrap_or(0));
        }
        self.saving.encode(out);
    }

    /// Reads a policy.
    pub fn decode(reader: &mut Reader) -> Result<Policy> {
        let mut rules = [None; 3];
        for rule in &mut rules {
            let given = reader.u8()?;
            let value = reader.varint()?;
            *rule = (given == 1).then_some(value);
        }
        let [keep_last, keep_every, purge_after_s] = rules;
        let keep_last = keep_last.map(|count| count.min(u64::from(u32::MAX)) as u32);
        Ok(Policy { keep_last, keep_every, purge_after_s, saving: Saving::decode(reader)? })
    }
}

impl std::fmt::Display for Policy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut words = Vec::new();
        words.extend(self.keep_last.map(|count| format!("keep-last={count}")));
        words.extend(self.keep_every.map(|every| format!("keep-every={every}")));
        if words.is_empty() {
            words.push("keep-all".to_owned());
        }
        words.extend(self.purge_after_s.map(|seconds| format!("purge-after={seconds}s")));
        self.saving.words(&mut words);
        f.write_str(&words.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(policy: &Policy, now_ns: i64) -> Vec<u64> {
        let candidates: Vec<Candidate> = (1..=10)
            .map(|i| Candidate { step: i * 100, sequence: i, created_ns: i as i64 * 1_000_000_000 })
            .collect();
        let dropped = policy.dropped(&candidates, now_ns);
        candidates.iter().enumerate().filter(|(i, _)| !dropped.contains(i)).map(|(_, c)| c.step).collect()
    }

    #[test]
    fn rules_keep_what_they_say() {
        let now = 11_000_000_000;
        assert_eq!(steps(&Policy::KEEP_ALL, now).len(), 10);
        let last = Policy { keep_last: Some(3), ..Policy::default() };
        assert_eq!(steps(&last, now), [800, 900, 1000]);
        let every = Policy { keep_last: Some(2), keep_every: Some(400), ..Policy::default() };
        assert_eq!(steps(&every, now), [400, 800, 900, 1000]);
        let purge = Policy { purge_after_s: Some(3), ..Policy::default() };
        assert_eq!(steps(&purge, now), [800, 900, 1000]);
    }

    #[test]
    fn what_is_settled_is_read_as_it_was_written() {
        let codings = [
            None,
            Some(Wanted::Prefer(Preferred::Space)),
            Some(Wanted::Fixed(Coding::new(Codec::Zstd, 4).of_delta(), 9)),
        ];
        for chunking in [None, Some(Chunking::Page(4096)), Some(Chunking::Cdc(8192))] {
            for coding in codings {
                let policy =
                    Policy { keep_last: Some(3), saving: Saving { chunking, coding }, ..Policy::default() };
                let mut out = Writer::new();
                policy.encode(&mut out);
                let bytes = out.into_bytes();
                let mut reader = Reader::new(&bytes, "policy");
                assert_eq!(Policy::decode(&mut reader).unwrap(), policy);
                reader.finish().unwrap();
                (0..bytes.len())
                    .for_each(|len| assert!(Policy::decode(&mut Reader::new(&bytes[..len], "cut")).is_err()));
            }
        }
        let saving = Saving { chunking: Some(Chunking::Page(4096)), coding: codings[2] };
        let words = Policy { saving, ..Policy::default() }.to_string();
        assert_eq!(words, "keep-all chunking=page:4096 compress=delta+planes4+zstd:9");
    }

    #[test]
    fn the_newest_is_never_dropped() {
        let replace = Policy { keep_last: Some(0), purge_after_s: Some(0), ..Policy::default() };
        assert_eq!(steps(&replace, i64::MAX), [1000]);
    }

    #[test]
    fn newest_means_commit_order() {
        let policy = Policy { keep_last: Some(1), ..Policy::default() };
        let rolled_back = [
            Candidate { step: 900, sequence: 1, created_ns: 0 },
            Candidate { step: 500, sequence: 2, created_ns: 0 },
        ];
        assert_eq!(policy.dropped(&rolled_back, 0), [0]);
    }
}
