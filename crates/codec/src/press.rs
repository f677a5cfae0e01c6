//! Compressing and decompressing runs, with contexts and buffers that are kept for the next one.

use stdchk_object::pack::{Codec, Coding};
use stdchk_object::{Error, Result};

use crate::planes;

/// One thread's compressors and scratch space.
pub struct Press {
    zstd: Option<(i32, zstd::bulk::Compressor<'static>)>,
    unzstd: Option<zstd::bulk::Decompressor<'static>>,
    scratch: Vec<u8>,
    /// What was compressed last, and room behind it.
    packed: Vec<u8>,
}

impl Default for Press {
    fn default() -> Self {
        Press::new()
    }
}

impl Press {
    /// Empty; contexts are made when first needed.
    pub fn new() -> Press {
        Press { zstd: None, unzstd: None, scratch: Vec::new(), packed: Vec::new() }
    }

    /// `raw` in `coding` (zstd at `level`); nothing where that would not be shorter than `limit` bytes.
    pub fn compress(
        &mut self,
        coding: Coding,
        level: i32,
        raw: &[u8],
        limit: usize,
    ) -> Result<Option<&[u8]>> {
        let limit = limit.min(raw.len());
        if coding.planes > 0 {
            planes::split(coding.planes, raw, &mut self.scratch);
        }
        let input = if coding.planes == 0 { raw } else { &self.scratch };
        let length = match coding.codec {
            Codec::None => {
                self.packed.clear();
                self.packed.extend_from_slice(input);
                let fits = coding.planes > 0 || input.len() < limit;
                return Ok(fits.then_some(&self.packed));
            }
            Codec::Lz4 => {
                grow(&mut self.packed, lz4_flex::block::get_maximum_output_size(input.len()));
                lz4_flex::block::compress_into(input, &mut self.packed).map_err(failed)?
            }
            Codec::Zstd => {
                let compressor = match &mut self.zstd {
                    Some((made_for, compressor)) if *made_for == level => compressor,
                    other => {
                        let made = zstd::bulk::Compressor::new(level).map_err(failed)?;
                        &mut other.insert((level, made)).1
                    }
                };
                frames(compressor, &planes::parts(coding.planes, input), input, &mut self.packed)?
            }
        };
        Ok((length < limit).then_some(&self.packed[..length]))
    }

    /// Takes `stored` apart into `out`; the result must have exactly `raw_len` bytes.
    pub fn decompress(
        &mut self,
        coding: Coding,
        stored: &[u8],
        raw_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let target = if coding.planes == 0 { &mut *out } else { &mut scratch };
        let done = match coding.codec {
            Codec::None => {
                target.clear();
                target.extend_from_slice(stored);
                Ok(())
            }
            Codec::Lz4 => {
                target.clear();
                target.resize(raw_len, 0);
                let length = lz4_flex::block::decompress_into(stored, target);
                length.map(|length| target.truncate(length)).map_err(failed)
            }
            Codec::Zstd => self.unzstd(stored, raw_len, target),
        };
        if done.is_ok() && coding.planes > 0 {
            planes::join(coding.planes, &scratch, out);
        }
        self.scratch = scratch;
        done?;
        if out.len() == raw_len {
            Ok(())
        } else {
            Err(Error::corrupt("a run decompresses to another length"))
        }
    }

    fn unzstd(&mut self, stored: &[u8], raw_len: usize, out: &mut Vec<u8>) -> Result<()> {
        if self.unzstd.is_none() {
            self.unzstd = Some(zstd::bulk::Decompressor::new().map_err(failed)?);
        }
        out.clear();
        out.reserve_exact(raw_len);
        let decompressor = self.unzstd.as_mut().expect("just made");
        decompressor.decompress_to_buffer(stored, out).map(|_| ()).map_err(failed)
    }
}

/// Compresses the parts of the input that end there into frames one behind the other; their length.
fn frames(
    compressor: &mut zstd::bulk::Compressor,
    ends: &[usize],
    input: &[u8],
    packed: &mut Vec<u8>,
) -> Result<usize> {
    let (mut from, mut length) = (0, 0);
    for &end in ends {
        let part = &input[from..end];
        grow(packed, length + zstd::zstd_safe::compress_bound(part.len()));
        length += compressor.compress_to_buffer(part, &mut packed[length..]).map_err(failed)?;
        from = end;
    }
    Ok(length)
}

/// Makes room, which is kept: clearing it anew for every run would cost as much as some compressors do.
fn grow(room: &mut Vec<u8>, len: usize) {
    if room.len() < len {
        room.resize(len, 0);
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("a run cannot be compressed or decompressed: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codings() -> impl Strategy<Value = Coding> {
        let codec = prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)];
        let width = prop_oneof![Just(0u8), Just(2), Just(4), Just(8)];
        (codec, width).prop_map(|(codec, planes)| Coding::new(codec, planes))
    }

    proptest! {
        #[test]
        fn runs_come_back(coding in codings(), byte in any::<u8>(), noise in proptest::collection::vec(any::<u8>(), 0..300), zeros in 0usize..5000) {
            let mut raw = noise;
            raw.resize(raw.len() + zeros, byte);
            let (mut press, mut back) = (Press::new(), Vec::new());
            let stored = press.compress(coding, 1, &raw, usize::MAX).unwrap().map(<[u8]>::to_vec);
            if let Some(stored) = stored {
                press.decompress(coding, &stored, raw.len(), &mut back).unwrap();
                prop_assert_eq!(&back, &raw);
                prop_assert!(press.decompress(coding, &stored, raw.len() + 1, &mut back).is_err());
            }
        }

        #[test]
        fn hostile_bytes_are_refused(coding in codings(), stored in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut out = Vec::new();
            let _ = Press::new().decompress(coding, &stored, 4096, &mut out);
        }
    }
}
