//! Sessions of several parts.

use std::time::Duration;

use stdchk::{Kind, SCRIPT_LEASE, SaveOptions};

use crate::{app, options, read, repository};

#[test]
fn a_session_lives_while_a_part_is_added() {
    let (fs, repository) = repository();
    let session = repository.begin(&app(), 1, None, Duration::from_millis(800)).expect("begin");
    let mut part = repository.add(session, options()).expect("add");
    part.add_stream("state", &mut &b"x"[..], &|_| {}).expect("stream");
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(300));
        fs.pass(Duration::from_millis(300));
        assert!(stdchk::collect(&repository.ground(), false).expect("gc").fenced.is_empty());
    }
    part.finish().expect("finish");
    repository.commit(session, "").expect("commit");
}

#[test]
fn a_rank_that_tries_again_replaces_its_part() {
    let (_, repository) = repository();
    let session = repository.begin(&app(), 1, Some(1), SCRIPT_LEASE).expect("begin");
    let add = |replace: bool, bytes: &[u8]| {
        let mut part = repository.add(session, SaveOptions { replace, ..options() }).expect("add");
        part.add_stream("state", &mut { bytes }, &|_| {}).expect("stream");
        part.finish()
    };
    add(false, b"first").expect("the first");
    assert_eq!(add(false, b"again").expect_err("not by accident").kind(), Kind::Exists);
    add(true, b"second").expect("replaced");
    repository.commit(session, "").expect("commit");
    assert_eq!(read(&repository, 1).expect("read"), b"second");
}
