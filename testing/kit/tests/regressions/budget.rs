//! What bounds the memory and the time of a save.

use std::time::Duration;

use stdchk::{Chunking, ChunkingChoice, Coding, Kind, Preference};
use stdchk_kit::Random;

use crate::{app, options, read, repository, save};

/// Fails the test where something waits for ever.
fn within(time: Duration, what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    wait.recv_timeout(time).unwrap_or_else(|_| panic!("{what}: it hangs, or failed"));
}

#[test]
fn many_small_members_do_not_drain_the_buffers() {
    within(Duration::from_secs(60), "500 small members", || {
        let (_, repository) = repository();
        let mut save = repository.save(&app(), 1, options()).expect("save");
        let mut random = Random::new(1);
        for i in 0..500 {
            save.add_bytes(&format!("m{i}"), &random.bytes(300 + i)).expect("add");
        }
        assert_eq!(save.commit().expect("commit").entry.member_count, 500);
    });
}

#[test]
fn a_few_new_pages_in_each_unit_do_not_drain_the_buffers() {
    for chunking in [ChunkingChoice::Auto, ChunkingChoice::Fixed(Chunking::Cdc(8192))] {
        within(Duration::from_secs(120), "little new in much", move || {
            let (_, repository) = repository();
            let mut image = Random::new(2).bytes(48 << 20);
            let mut options = options();
            options.coding = Some(Preference::Fixed(Coding::NONE, 1));
            options.chunking = Some(chunking);
            save(&repository, 1, &image, options.clone());
            image.chunks_mut(4 << 20).for_each(|unit| unit[..4096].fill(3));
            // Another name, so that there is no parent at the same place, and all is found by hash.
            let mut other = repository.save(&app(), 2, options.clone()).expect("save");
            other.add_bytes("other", &image).expect("add");
            other.commit().expect("commit");
            let repeated: Vec<u8> = Random::new(3).bytes(64 << 10).repeat(640);
            save(&repository, 3, &repeated, options);
            assert!(read(&repository, 3).expect("read") == repeated);
        });
    }
}

#[test]
fn large_chunks_want_a_budget_that_holds_them() {
    let (_, repository) = repository();
    let mut options = options();
    options.chunking = Some(ChunkingChoice::Fixed(Chunking::Page(16 << 20)));
    assert_eq!(repository.save(&app(), 1, options.clone()).err().expect("too small").kind(), Kind::Invalid);
    options.memory = 256 << 20;
    let image = Random::new(4).bytes(40 << 20);
    save(&repository, 1, &image, options);
    // A later save with a small budget does not inherit what it cannot hold.
    save(&repository, 2, &image, self::options());
    assert!(read(&repository, 2).expect("read") == image);
}
