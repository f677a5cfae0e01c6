//! After a fork, the copy of the child is not watched, and the parent's memory still is.
#![allow(unsafe_code)]

use stdchk_capture::{Memory, page_bytes};

fn written(memory: &mut Memory) -> Vec<std::ops::Range<usize>> {
    let mut all = Vec::new();
    memory.written(&mut |range| all.push(range));
    all
}

/// Does `work` in a child; whether it is content.
fn in_a_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only looks at its memory and ends, without running what others have left to be run.
    match unsafe { libc::fork() } {
        -1 => panic!("no child"),
        0 => {
            let status = if work() { 0 } else { 1 };
            // SAFETY: ends the process.
            unsafe { libc::_exit(status) }
        }
        child => {
            let mut status = 0;
            // SAFETY: the status is written to, which is borrowed for that.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            status == 0
        }
    }
}

#[test]
fn a_fork_is_seen_by_both_sides() {
    let page = page_bytes();
    let mut memory = Memory::zeroed(100 * page).expect("memory");
    if !memory.is_watched() {
        return eprintln!("skipped: this kernel does not watch memory");
    }
    memory.fill(1);
    written(&mut memory);
    let all = 0..100 * page;
    let one = |at: usize| at * page..(at + 1) * page;
    assert!(in_a_child(|| {
        let of_copy = written(&mut memory);
        // What it makes for itself is its own.
        let mut new = Memory::zeroed(3 * page).expect("memory");
        written(&mut new);
        new[page] = 1;
        let of_new = written(&mut new);
        // And from then on the copy is watched, too.
        written(&mut memory);
        memory[3 * page] = 1;
        of_copy == [all.clone()] && new.is_watched() && of_new == [one(1)] && written(&mut memory) == [one(3)]
    }));
    assert_eq!(written(&mut memory), [], "a child's doings are its own");
    memory[7 * page] = 2;
    assert_eq!(written(&mut memory), [one(7)], "a copy on write is a write");
}
