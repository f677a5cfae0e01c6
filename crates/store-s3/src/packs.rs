//! Packs as objects.

use bytes::Bytes;
use object_store::PutMode;
use stdchk_object::{Error, Kind, PackName, Result};
use stdchk_store::Store;

use crate::bucket::{Got, S3Store};

const PACKS: &str = "packs";

fn name_of(pack: PackName) -> String {
    format!("{PACKS}/{:02x}/{pack}", pack.session.0 >> 56)
}

impl S3Store {
    fn missing(&self, pack: PackName) -> Error {
        Error::new(Kind::NotFound, format!("pack {pack} is not in {}", self.place))
    }

    fn read_pack(&self, pack: PackName, offset: u64, len: u64) -> Result<Bytes> {
        let short = || Error::corrupt(format!("pack {pack} in {} is cut short", self.place));
        match self.get(&name_of(pack), offset, len)? {
            Got::Nothing => Err(self.missing(pack)),
            Got::Ended => Err(short()),
            Got::Bytes(bytes) if bytes.len() as u64 != len => Err(short()),
            Got::Bytes(bytes) => Ok(bytes),
        }
    }
}

impl Store for S3Store {
    fn put(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        match S3Store::put(self, &name_of(name), pieces, PutMode::Create) {
            // The answer to a request that succeeded may have been lost, and the request sent again: read back.
            Err(error) if !matches!(error.kind(), Kind::Denied | Kind::Invalid) => {
                let len = pieces.iter().map(|piece| piece.len() as u64).sum();
                let there = self.read_pack(name, 0, len);
                let is_ours = self.length(name).is_ok_and(|there| there == len)
                    && there.is_ok_and(|there| there == pieces.concat());
                if is_ours { Ok(()) } else { Err(error) }
            }
            done => done,
        }
    }

    fn replace(&self, name: PackName, pieces: &[&[u8]]) -> Result<()> {
        S3Store::put(self, &name_of(name), pieces, PutMode::Overwrite)
    }

    /// Whatever was answered with success is durable; that it is there is all that can be asked.
    fn sync(&self, names: &[PackName]) -> Result<()> {
        names.iter().try_for_each(|&name| self.length(name).map(drop))
    }

    fn length(&self, name: PackName) -> Result<u64> {
        self.head(&name_of(name))?.map(|meta| meta.size).ok_or_else(|| self.missing(name))
    }

    fn read_into(&self, name: PackName, offset: u64, buffers: &mut [&mut [u8]]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let bytes = self.read_pack(name, offset, len)?;
        let mut rest = &bytes[..];
        for buffer in buffers {
            let (head, tail) = rest.split_at(buffer.len());
            buffer.copy_from_slice(head);
            rest = tail;
        }
        Ok(())
    }

    fn list(&self, each: &mut dyn FnMut(PackName, u64)) -> Result<()> {
        self.walk(PACKS, |name, len| {
            let pack = name.split_once('/').and_then(|(_, pack)| pack.parse::<PackName>().ok());
            if let Some(pack) = pack.filter(|&pack| name_of(pack) == format!("{PACKS}/{name}")) {
                each(pack, len);
            }
        })
    }

    fn remove(&self, names: &[PackName]) -> Result<()> {
        self.delete_all(names.iter().copied().map(name_of))
    }
}
