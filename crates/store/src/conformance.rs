//! The suite that every implementation of [`Store`] and [`Objects`] passes, wrappers included.
//!
//! Each function takes an empty store and panics where the contract is broken.

use std::collections::BTreeMap;

use stdchk_object::{Kind, PackName, SessionId};

use crate::{Objects, Store};

fn name(session: u64, number: u32) -> PackName {
    PackName { session: SessionId(session), writer: 7, number }
}

fn listed(store: &dyn Store) -> BTreeMap<PackName, u64> {
    let mut found = BTreeMap::new();
    store.list(&mut |name, length| _ = found.insert(name, length)).expect("list");
    found
}

/// Checks a [`Store`].
pub fn store(store: &dyn Store) {
    assert!(listed(store).is_empty(), "the suite wants an empty store");
    let (a, b, gone) = (name(1, 0), name(u64::MAX, 1), name(3, 3));
    store.put(a, &[b"hello ", b"", b"world"]).expect("put");
    store.put(b, &[&[9; 100_000]]).expect("put");
    assert_eq!(store.put(a, &[b"again"]).expect_err("second put").kind(), Kind::Exists);
    store.sync(&[a, b]).expect("sync");
    store.sync(&[]).expect("sync of nothing");

    for (name, range) in [(a, 0..5), (a, 0..u64::MAX), (a, 7..7), (a, u64::MAX - 1..u64::MAX), (gone, 0..5)] {
        store.will_read(name, range);
    }
    let mut buffer = [0; 5];
    store.read(a, 6, &mut buffer).expect("read");
    assert_eq!(&buffer, b"world", "the first put stands");
    store.read(a, 11, &mut []).expect("an empty read at the end");
    assert_eq!(store.read(a, 7, &mut buffer).expect_err("past the end").kind(), Kind::Corrupt);
    assert_eq!(store.read(a, u64::MAX, &mut buffer).expect_err("far past the end").kind(), Kind::Corrupt);
    let (mut one, mut two, mut three) = ([0; 1], [0; 4], [0; 6]);
    store.read_into(a, 0, &mut [&mut one, &mut two, &mut [], &mut three]).expect("read into several");
    assert_eq!((&one, &two, &three), (b"h", b"ello", b" world"));
    let short = store.read_into(a, 1, &mut [&mut two, &mut three, &mut one]);
    assert_eq!(short.expect_err("several past the end").kind(), Kind::Corrupt);
    let mut many = vec![[0u8; 16]; 5000];
    let mut slices: Vec<&mut [u8]> = many.iter_mut().map(|each| &mut each[..]).collect();
    store.read_into(b, 0, &mut slices).expect("more buffers than a system call takes");
    assert!(many.iter().all(|each| *each == [9; 16]));
    assert_eq!(store.length(b).expect("length"), 100_000);
    assert_eq!(listed(store), BTreeMap::from([(a, 11), (b, 100_000)]));

    for kind in [
        store.read(gone, 0, &mut buffer).expect_err("read of nothing").kind(),
        store.length(gone).expect_err("length of nothing").kind(),
        store.sync(&[gone]).expect_err("sync of nothing").kind(),
    ] {
        assert_eq!(kind, Kind::NotFound);
    }
    store.replace(name(0xab << 56, 1), &[b"lost"]).expect("replace what is lost");
    assert_eq!(store.length(name(0xab << 56, 1)).expect("it is there"), 4);
    store.remove(&[name(0xab << 56, 1)]).expect("remove");
    store.replace(b, &[b"mended"]).expect("replace");
    let mut mended = [0; 6];
    store.read(b, 0, &mut mended).expect("read what was replaced");
    assert_eq!(&mended, b"mended");
    past_cache(store);
    store.remove(&[a, gone]).expect("remove passes over what is not there");
    assert_eq!(store.length(a).expect_err("removed").kind(), Kind::NotFound);
    assert_eq!(listed(store).len(), 1);
    store_at_once(store);
}

/// A pack that is put past the caches is like any other.
fn past_cache(store: &dyn Store) {
    let large: Vec<u8> = (0..2_500_001u32).map(|i| (i % 251) as u8 ^ (i >> 16) as u8).collect();
    for (number, cuts) in [(0, [1, 2_400_000]), (1, [1_048_576, 1_048_577]), (2, [0, 2_500_001])] {
        let name = name(4, number);
        let pieces = [&large[..cuts[0]], &large[cuts[0]..cuts[1]], &large[cuts[1]..]];
        store.put_past_cache(name, &pieces).expect("put past the cache");
        let again = store.put_past_cache(name, &[&large[1..], b"again"]);
        assert_eq!(again.expect_err("second put").kind(), Kind::Exists);
        store.sync(&[name]).expect("sync");
        assert_eq!(store.length(name).expect("length"), large.len() as u64);
        let mut there = vec![0; large.len()];
        store.read(name, 0, &mut there).expect("read what was put past the cache");
        assert!(there == large);
        store.remove(&[name]).expect("remove");
    }
}

/// Of many that put the same name, one wins, and its bytes stand.
fn store_at_once(store: &dyn Store) {
    let wins: Vec<bool> = std::thread::scope(|scope| {
        let puts: Vec<_> =
            (0..8u8).map(|i| scope.spawn(move || store.put(name(5, 5), &[&[i; 5000]]).is_ok())).collect();
        puts.into_iter().map(|put| put.join().expect("put does not panic")).collect()
    });
    assert_eq!(wins.iter().filter(|&&won| won).count(), 1);
    let mut buffer = [0; 5000];
    store.read(name(5, 5), 0, &mut buffer).expect("read");
    let winner = wins.iter().position(|&won| won).expect("one won") as u8;
    assert!(buffer.iter().all(|&byte| byte == winner));
}

/// Checks [`Objects`].
pub fn objects(objects: &dyn Objects) {
    assert_eq!(objects.get("log/1").expect("read"), None);
    assert!(objects.create("log/1", b"one", true).expect("create"));
    assert!(!objects.create("log/1", b"two", true).expect("create again"));
    assert_eq!(objects.get("log/1").expect("read").as_deref(), Some(&b"one"[..]));
    objects.replace("log/1", b"three", true).expect("replace");
    objects.replace("mark", b"m", false).expect("replace makes what is not there");
    assert_eq!(objects.get("log/1").expect("read").as_deref(), Some(&b"three"[..]));
    assert_eq!(objects.get("mark").expect("read").as_deref(), Some(&b"m"[..]));
    assert!(objects.create("log/2", b"", false).expect("create empty"));
    objects.sync_folder("log").expect("sync");
    let range = |offset, len| objects.get_range("log/1", offset, len).expect("range");
    assert_eq!(range(1, 2).as_deref(), Some(&b"hr"[..]));
    assert_eq!(range(3, 100).as_deref(), Some(&b"ee"[..]), "a range ends with the object");
    assert_eq!(range(9, 1).as_deref(), Some(&b""[..]));
    assert_eq!(objects.get_range("log/9", 0, 1).expect("range of nothing"), None);

    let mut names = objects.names("log").expect("list");
    names.sort();
    assert_eq!(names, ["1", "2"]);
    assert!(objects.names("beats").expect("list of nothing").is_empty());
    let ages = objects.ages("log").expect("ages");
    assert!(ages.iter().all(|(_, age)| age.as_secs() < 60), "just written: {ages:?}");
    objects.delete(&["log/1".into(), "log/9".into()]).expect("remove passes over what is not there");
    assert_eq!(objects.names("log").expect("list"), ["2"]);

    let wins: usize = std::thread::scope(|scope| {
        let tries: Vec<_> =
            (0..8u8).map(|i| scope.spawn(move || objects.create("log/3", &[i; 500], true))).collect();
        tries.into_iter().map(|t| usize::from(t.join().expect("joins").expect("create"))).sum()
    });
    assert_eq!(wins, 1, "exactly one creates");
}
