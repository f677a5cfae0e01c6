//! Values as people write them.

pub use stdchk::units::duration;
use stdchk::units::split;
use stdchk::{Chunking, ChunkingChoice, Code, Codec, Coding, Error, Prefer, Result};

/// A size: `4096`, `64KiB`, `1.5GiB`, `2GB`.
pub fn bytes(text: &str) -> Result<u64> {
    let bad = || Error::invalid(format!("{text:?} is no size: write for example 4096, 64KiB, 256MiB or 2GB"));
    let (number, unit) = split(text.trim()).ok_or_else(bad)?;
    let factor = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024f64.powi(3),
        "t" | "tib" => 1024f64.powi(4),
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        "p" | "pib" => 1024f64.powi(5),
        "pb" => 1e15,
        _ => return Err(bad()),
    };
    let value = number * factor;
    if value.is_finite() && value < 9e18 { Ok(value as u64) } else { Err(bad()) }
}

/// A size of something that is there.
pub fn some_bytes(text: &str) -> Result<u64> {
    match bytes(text)? {
        0 => Err(Error::invalid(format!("{text:?} is nothing: write for example 64KiB, 256MiB or 2GB"))),
        size => Ok(size),
    }
}

/// A memory budget: a size of at least 64 MiB.
pub fn memory(text: &str) -> Result<u64> {
    match bytes(text)? {
        size if size >= 64 << 20 => Ok(size),
        _ => Err(Error::invalid(format!("{text:?} is too small a budget: 64MiB is the least"))),
    }
}

/// A rate in bytes for each second: `50GB/s`, `500MiB/s`.
pub fn rate(text: &str) -> Result<u64> {
    let bad = || Error::invalid(format!("{text:?} is no rate: write for example 500MB/s or 50GB/s"));
    let size = text.trim().strip_suffix("/s").ok_or_else(bad)?;
    // Networks are sold by bits, so a small b behind a large letter may mean them.
    if size.ends_with("bit")
        || size.strip_suffix('b').is_some_and(|rest| rest.ends_with(['K', 'M', 'G', 'T']))
    {
        let text = format!("{text:?} may be bits: rates are in bytes, as in 50GB/s; 100 Gbit/s are 12.5GB/s");
        return Err(Error::invalid(text));
    }
    bytes(size).ok().filter(|&rate| rate > 0).ok_or_else(bad)
}

/// A chunking: `auto`, `page`, `page:64KiB`, `cdc`, `cdc:16KiB`.
pub fn chunking(text: &str) -> Result<ChunkingChoice> {
    let (word, size) = match text.split_once(':') {
        Some((word, size)) => (word, Some(bytes(size)?)),
        None => (text, None),
    };
    let size = |default: u32| u32::try_from(size.unwrap_or(u64::from(default))).unwrap_or(u32::MAX);
    match word {
        "auto" if !text.contains(':') => Ok(ChunkingChoice::Auto),
        "page" => ChunkingChoice::Fixed(Chunking::Page(size(4096))).check(),
        "cdc" => ChunkingChoice::Fixed(Chunking::Cdc(size(8192))).check(),
        _ => Err(Error::invalid(format!("{text:?} is no chunking: auto, page, page:SIZE, cdc or cdc:SIZE"))),
    }
}

/// A codec and its level, or whatever measuring says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compress {
    Auto,
    Fixed(Coding, i32),
}

/// A codec: `auto`, `none`, `lz4`, `zstd`, `zstd:9`, `planes4+zstd`.
pub fn coding(text: &str) -> Result<Compress> {
    let bad = || {
        Error::invalid(format!(
            "{text:?} is no codec: auto, none, lz4, zstd, zstd:LEVEL, planes4+zstd:LEVEL or delta+planes4+zstd:LEVEL"
        ))
    };
    if text == "auto" {
        return Ok(Compress::Auto);
    }
    let (delta, rest) = text.strip_prefix("delta+").map_or((false, text), |rest| (true, rest));
    let (planes, codec) = match rest.split_once('+') {
        Some(("planes2", codec)) => (2, codec),
        Some(("planes4", codec)) => (4, codec),
        Some(("planes8", codec)) => (8, codec),
        Some(_) => return Err(bad()),
        None => (0, rest),
    };
    let (codec, level) = match codec.split_once(':') {
        Some(("zstd", level)) => {
            (Codec::Zstd, level.parse().ok().filter(|l| (1..=19).contains(l)).ok_or_else(bad)?)
        }
        Some(_) => return Err(bad()),
        None => match codec {
            "none" if planes == 0 && !delta => (Codec::None, 1),
            "lz4" => (Codec::Lz4, 1),
            "zstd" => (Codec::Zstd, 1),
            _ => return Err(bad()),
        },
    };
    let coding = Coding::new(codec, planes);
    Ok(Compress::Fixed(if delta { coding.of_delta() } else { coding }, level))
}

/// A preference: `time`, `balanced`, `space`.
pub fn prefer(text: &str) -> Result<Prefer> {
    match text {
        "time" => Ok(Prefer::Time),
        "balanced" => Ok(Prefer::Balanced),
        "space" => Ok(Prefer::Space),
        _ => Err(Error::invalid(format!("{text:?} is no preference: time, balanced or space"))),
    }
}

/// What compression makes of a checkpoint, and how fast one node compresses and brings back, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shrinking {
    pub factor: f64,
    pub compress: Option<u64>,
    pub decompress: Option<u64>,
}

/// No compressor makes anything smaller than that.
const FACTOR_MAX: f64 = 1e6;

/// `1.5`, `1.5:500MB/s`, `1.5:500MB/s:2GB/s`.
pub fn shrinking(text: &str) -> Result<Shrinking> {
    let bad = || {
        Error::invalid(format!(
            "{text:?} says nothing of compression: write how many times smaller it makes a checkpoint, 1 or more, \
             and how fast a node does it, as in 1.5:500MB/s, or 1.5:500MB/s:2GB/s with the way back"
        ))
    };
    let mut words = text.split(':');
    let factor = words.next().and_then(|word| word.trim().parse::<f64>().ok()).ok_or_else(bad)?;
    if !(1.0..=FACTOR_MAX).contains(&factor) {
        return Err(bad());
    }
    let mut speed = || words.next().map(rate).transpose();
    let (compress, decompress) = (speed()?, speed()?);
    if words.next().is_some() { Err(bad()) } else { Ok(Shrinking { factor, compress, decompress }) }
}

/// How packs are protected: a code, or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erasure(pub Option<Code>);

/// A code such as `8+2`, or `none`.
pub fn erasure(text: &str) -> Result<Erasure> {
    if text == "none" { Ok(Erasure(None)) } else { text.parse().map(|code| Erasure(Some(code))) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn sizes_and_times() {
        for (text, value) in
            [("0", 0), ("4096", 4096), ("64KiB", 65536), ("1.5k", 1536), ("2GB", 2_000_000_000)]
        {
            assert_eq!(bytes(text).unwrap(), value, "{text}");
        }
        for bad in ["", "x", "-1", "1XB", "1e30TB", "nan", "inf", "99999999999TB"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(rate("50GB/s").unwrap(), 50_000_000_000);
        for bad in ["50GB", "0B/s", "/s", "-1GB/s", "x/s", "100Gb/s", "100Gbit/s", "8Mb/s"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
        assert_eq!(bytes("1.5PB").unwrap(), 1_500_000_000_000_000);
        let speeds = |compress, decompress| Shrinking { factor: 1.5, compress, decompress };
        assert_eq!(shrinking("1.5").unwrap(), speeds(None, None));
        assert_eq!(shrinking("1.5:1GB/s:2GB/s").unwrap(), speeds(Some(1_000_000_000), Some(2_000_000_000)));
        for bad in ["", "0.9", "nan", "inf", "1e300", "2:", "2:fast", "2:1GB/s:1GB/s:1GB/s", ":1GB/s"] {
            assert!(shrinking(bad).is_err(), "{bad}");
        }
        assert_eq!(duration("15min").unwrap(), Duration::from_secs(900));
        assert_eq!(duration("1.5h").unwrap(), Duration::from_secs(5400));
        for bad in ["", "h", "-1s", "5q", "99999999999999999999d"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn chunkings_and_codecs() {
        assert_eq!(chunking("page:64KiB").unwrap(), ChunkingChoice::Fixed(Chunking::Page(65536)));
        for bad in ["page:3", "page:100MiB", "cdc:1", "auto:4", "fixed", ""] {
            assert!(chunking(bad).is_err(), "{bad}");
        }
        let planes = Coding::new(Codec::Zstd, 4);
        assert_eq!(coding("planes4+zstd:3").unwrap(), Compress::Fixed(planes, 3));
        assert_eq!(coding("delta+planes4+zstd:3").unwrap(), Compress::Fixed(planes.of_delta(), 3));
        for bad in [
            "delta+none",
            "delta",
            "planes4+delta+zstd",
            "zip",
            "zstd:99",
            "lz4:3",
            "planes3+zstd",
            "planes4+none",
            "",
        ] {
            assert!(coding(bad).is_err(), "{bad}");
        }
    }
}
