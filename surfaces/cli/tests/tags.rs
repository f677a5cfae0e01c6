//! Tags of what was saved: they make saves faster, and change nothing else, whatever becomes of them (docs/TAGS.md).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;

/// Enough for tags.
const PAGES: usize = 4 << 10;
const PAGE: usize = 4096;
/// Bytes of a tag, where the pages of a leaf are all alike.
const TAG: usize = 16;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("a directory") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn stdchk(&self, store: &str, args: &[&str]) -> std::process::Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
        command.env("STDCHK_STORE", self.path(store)).env("STDCHK_CACHE", self.path("cache"));
        command.env_remove("STDCHK_LOG").args(args).output().expect("the binary starts")
    }

    fn save(&self, store: &str, step: usize, bytes: &[u8]) {
        fs::write(self.path("state"), bytes).expect("a file");
        let state = self.path("state");
        let args = ["save", "melt", "--durability", "staged", "--step", &step.to_string()];
        let output = self.stdchk(store, &[&args[..], &[state.to_str().expect("text")]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn saved(&self, store: &str, step: usize) -> Vec<u8> {
        let output = self.stdchk(store, &["cat", &format!("melt@{step}:state")]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn restored(&self, store: &str, step: usize) -> Vec<u8> {
        let to = self.path(&format!("restored.{step}"));
        let args = ["restore", &format!("melt@{step}"), "--to", to.to_str().expect("text")];
        let output = self.stdchk(store, &args);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        fs::read(to.join("state")).expect("a file")
    }

    /// Bytes that a save stored for the first time.
    fn new_bytes(&self, store: &str, step: usize) -> u64 {
        let output = self.stdchk(store, &["show", &format!("melt@{step}"), "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        shown["new_bytes"].as_u64().expect("a number")
    }

    /// The files of tags, without the one that the next is written in the place of.
    fn tags(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("cache/tags")).into_iter().flatten();
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| *path != self.spare()).collect()
    }

    fn spare(&self) -> PathBuf {
        self.path("cache/tags/spare")
    }

    fn the_tags(&self) -> PathBuf {
        let [tags] = self.tags().try_into().expect("one file");
        tags
    }
}

fn noise(pages: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let word = |_| {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..pages * PAGE / 8).flat_map(word).collect()
}

/// Writes so many pages anew, each where pages of the file lie.
fn rewrite(state: &mut [u8], count: usize, seed: u64) {
    let (pages, new) = (state.len() / PAGE, noise(count, seed ^ 0x5555));
    for (i, page) in new.chunks(PAGE).enumerate() {
        let at = u64::from_le_bytes(page[..8].try_into().expect("8 bytes")) as usize % pages * PAGE;
        state[at..at + PAGE].copy_from_slice(page);
        state[at] = i as u8;
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o777
}

#[test]
fn each_save_leaves_the_tags_of_what_it_saved_to_its_user_alone() {
    let place = Place::new();
    let mut state = noise(PAGES, 1);
    place.save("store", 1, &state);
    let first = place.the_tags();
    assert!(fs::metadata(&first).expect("a file").len() >= (PAGES * 16) as u64);
    assert_eq!(
        [mode(&first), mode(&place.path("cache/secret")), mode(&place.path("cache"))],
        [0o600, 0o600, 0o700]
    );
    // Nothing has changed.
    place.save("store", 2, &state);
    assert_eq!(place.the_tags(), first);
    state[5 * PAGE] ^= 1;
    place.save("store", 3, &state);
    assert_ne!(place.the_tags(), first);
    // The file of the first is there for the next tags, which are as long as they are, whatever it has.
    let spare = fs::read(place.spare()).expect("a file");
    fs::write(place.spare(), [&spare[..], &[7; 9000]].concat()).expect("a longer file");
    let inode = |path: &Path| fs::metadata(path).expect("a file").ino();
    let kept = inode(&place.spare());
    state[9 * PAGE] ^= 1;
    place.save("spare", 1, &state);
    let of_all = place.tags();
    let again = of_all.iter().find(|tags| inode(tags) == kept).expect("the spare file has got a name");
    assert_eq!(fs::metadata(again).expect("a file").len(), spare.len() as u64);
    fs::remove_file(again).expect("a file");
    // What is small is as fast without.
    place.save("other", 1, &state[..100 * PAGE]);
    assert_eq!(place.tags().len(), 1);
    // Old ones go.
    let old = place.path("cache/tags/0123456789abcdef0123456789abcdef");
    let others = place.path("cache/tags/of somebody else");
    fs::write(&old, b"old").expect("a file");
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(31 * 24 * 3600);
    fs::write(&others, b"old").expect("a file");
    for path in [&old, &others] {
        fs::File::open(path).and_then(|file| file.set_modified(long_ago)).expect("a time");
    }
    place.save("store", 4, &state);
    assert!(!old.exists() && others.exists());
    // Nobody is asked to keep any.
    let none =
        ["save", "melt", "--step", "5", place.path("state").to_str().expect("text")].map(str::to_owned);
    let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
    command.env("STDCHK_STORE", place.path("store")).env("STDCHK_CACHE", "").env("HOME", place.path("home"));
    assert!(command.args(none).output().expect("it starts").status.success());
    assert!(!place.path("home").exists());
}

/// The parent's tags are found and read, unless they are another's.
#[test]
fn the_tags_of_the_parent_are_taken_and_no_others() {
    let place = Place::new();
    let before = noise(PAGES, 1);
    let mut after = before.clone();
    after[5 * PAGE] ^= 1;
    let said = |store: &str, step: usize, bytes: &[u8]| {
        fs::write(place.path("state"), bytes).expect("a file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_stdchk"));
        command.env("STDCHK_STORE", place.path(store)).env("STDCHK_CACHE", place.path("cache"));
        command.env("STDCHK_LOG", "debug").args(["save", "melt", "--step", &step.to_string()]);
        let output = command.arg(place.path("state")).output().expect("the binary starts");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let is_without = |said: &str| said.contains("no tags") || said.contains("tags cannot be read");
    said("store", 1, &before);
    let tags_before = place.the_tags();
    assert!(!is_without(&said("store", 2, &before)));
    said("other", 1, &after);
    let tags_after = place.tags().into_iter().find(|path| *path != tags_before).expect("another file");
    // Each is of one blob: those of another one, as right as they may be, are not taken.
    fs::copy(&tags_after, &tags_before).expect("a forgery");
    assert!(is_without(&said("store", 3, &after)));
    assert!(place.saved("store", 3) == after);
}

/// What moved to where the tag of the very same bytes was put by a damage is not taken for what was there.
#[test]
fn a_right_tag_at_the_wrong_place_is_noticed() {
    let place = Place::new();
    let before = noise(PAGES, 1);
    place.save("store", 1, &before);
    let path = place.the_tags();
    let mut tags = fs::read(&path).expect("a file");
    tags.copy_within(100 * TAG..101 * TAG, 300 * TAG);
    fs::write(&path, tags).expect("a file");
    let mut after = before.clone();
    after.copy_within(100 * PAGE..101 * PAGE, 300 * PAGE);
    place.save("store", 2, &after);
    assert!(place.saved("store", 2) == after);
}

#[test]
fn damaged_tags_are_passed_over() {
    let place = Place::new();
    let mut state = noise(PAGES, 1);
    place.save("store", 1, &state);
    let mut step = 1;
    let mut check = |harm: &dyn Fn(&Path)| {
        harm(&place.the_tags());
        step += 1;
        state[step * PAGE + 7] ^= 1;
        place.save("store", step, &state);
        assert!(place.saved("store", step) == state, "step {step}");
    };
    for at in [0.0, 0.3, 0.77, 0.9999, 1.0] {
        check(&|tags| {
            let mut bytes = fs::read(tags).expect("a file");
            let last = bytes.len() - 1;
            bytes[(last as f64 * at) as usize] ^= 0x81;
            fs::write(tags, bytes).expect("a file");
        });
        check(&|tags| {
            let bytes = fs::read(tags).expect("a file");
            fs::write(tags, &bytes[..(bytes.len() as f64 * at) as usize]).expect("a file");
        });
    }
    check(&|tags| fs::write(tags, [0xff; 1000]).expect("a file"));
    // Tags in the wrong order.
    check(&|tags| {
        let mut bytes = fs::read(tags).expect("a file");
        bytes[..PAGES * TAG].as_chunks_mut::<TAG>().0.reverse();
        fs::write(tags, bytes).expect("a file");
    });
    // One that is right lies where another one should, as after a crash or a flipped bit.
    check(&|tags| {
        let mut bytes = fs::read(tags).expect("a file");
        bytes.copy_within(100 * TAG..101 * TAG, 300 * TAG);
        fs::write(tags, bytes).expect("a file");
    });
    // Another secret.
    check(&|_| fs::write(place.path("cache/secret"), [3; 32]).expect("a file"));
    // None at all, as after a crash: another one is made.
    for none in [&[3; 5][..], &[0; 32]] {
        fs::write(place.path("cache/secret"), none).expect("a file");
        state[0] ^= 1;
        place.save("store", 100, &state);
        let secret = fs::read(place.path("cache/secret")).expect("a file");
        assert!(secret.len() == 32 && secret != [0; 32] && place.saved("store", 100) == state);
    }
    // A place that is not the user's alone.
    fs::remove_file(place.path("cache/secret")).expect("a file");
    fs::set_permissions(place.path("cache"), fs::Permissions::from_mode(0o777)).expect("a mode");
    place.save("store", 101, &state);
    assert!(!place.path("cache/secret").exists());
}

/// What becomes of a state from one version to the next.
#[derive(Clone, Debug)]
enum Change {
    Page(prop::sample::Index, u64),
    /// So many pages anywhere.
    Pages(usize, u64),
    Zeros(prop::sample::Index, usize),
    Insert(prop::sample::Index, usize),
    Cut(prop::sample::Index, usize),
    Truncate(usize),
    Append(usize),
}

fn change() -> impl Strategy<Value = Change> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        8 => (at(), any::<u64>()).prop_map(|(at, seed)| Change::Page(at, seed)),
        4 => (1usize..800, any::<u64>()).prop_map(|(count, seed)| Change::Pages(count, seed)),
        2 => (at(), 1usize..40_000).prop_map(|(at, len)| Change::Zeros(at, len)),
        2 => (at(), 1usize..9000).prop_map(|(at, len)| Change::Insert(at, len)),
        2 => (at(), 1usize..9000).prop_map(|(at, len)| Change::Cut(at, len)),
        1 => (1usize..300_000).prop_map(Change::Truncate),
        1 => (1usize..300_000).prop_map(Change::Append),
    ]
}

fn apply(change: &Change, state: &mut Vec<u8>) {
    match change {
        Change::Page(at, seed) => {
            let page = at.index(state.len() / PAGE) * PAGE;
            state[page..page + PAGE].copy_from_slice(&noise(1, *seed));
        }
        Change::Pages(count, seed) => rewrite(state, *count, *seed),
        Change::Zeros(at, len) => {
            let at = at.index(state.len() - len);
            state[at..at + len].fill(0);
        }
        Change::Insert(at, len) => {
            let at = at.index(state.len());
            state.splice(at..at, noise(3, *len as u64).into_iter().take(*len));
        }
        Change::Cut(at, len) => {
            let at = at.index(state.len() - len);
            state.drain(at..at + len);
        }
        Change::Truncate(len) => state.truncate(state.len() - len),
        Change::Append(len) => state.extend(noise(80, *len as u64).into_iter().take(*len)),
    }
}

/// Once bytes have moved, pages are rewritten across what is stored as one chunk: only what is rewritten is stored all the same, from the second time on.
#[test]
fn pages_that_are_rewritten_where_bytes_have_moved_are_stored_once() {
    let place = Place::new();
    let mut state = noise(PAGES, 1);
    place.save("store", 0, &state);
    for step in 1..=6 {
        state.splice(5000 * step..5000 * step, noise(1, 99).into_iter().take(777));
        place.save("store", step, &state);
        rewrite(&mut state, PAGES / 20, step as u64);
    }
    // Six insertions, of which none is a multiple of a page; what was rewritten last is not saved yet.
    for step in 2..=6 {
        let (new, most) = (place.new_bytes("store", step), (PAGES / 20 + PAGES / 100) * PAGE);
        assert!(new < most as u64, "step {step}: {new} of {most}");
    }
    assert!(place.new_bytes("store", 1) < 100 * PAGE as u64);
    place.save("store", 7, &state);
    assert!(place.saved("store", 7) == state && place.restored("store", 7) == state);
    assert!(place.stdchk("store", &["verify"]).status.success());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("STDCHK_TEST_LONG").is_some() { 200 } else { 5 }))]

    /// Whatever changes, also where bytes move: what was saved comes back.
    #[test]
    fn what_was_saved_with_tags_comes_back(
        versions in proptest::collection::vec(proptest::collection::vec(change(), 0..6), 2..5),
        seed in any::<u64>(),
    ) {
        let place = Place::new();
        let mut state = noise(PAGES + 700, seed);
        place.save("store", 0, &state);
        for (step, changes) in versions.iter().enumerate() {
            changes.iter().for_each(|change| apply(change, &mut state));
            place.save("store", step + 1, &state);
            prop_assert_eq!(place.tags().len(), 1);
            prop_assert!(place.saved("store", step + 1) == state);
        }
        // Also when what it shares was moved, and when the tags are gone.
        let newest = versions.len();
        for step in 0..newest {
            let forgotten = place.stdchk("store", &["forget", &format!("melt@{}", step)]);
            prop_assert!(forgotten.status.success());
        }
        prop_assert!(place.stdchk("store", &["gc"]).status.success());
        prop_assert!(place.stdchk("store", &["verify"]).status.success());
        prop_assert!(place.restored("store", newest) == state);
        fs::remove_dir_all(place.path("cache")).expect("it is there");
        rewrite(&mut state, 50, seed);
        place.save("store", newest + 1, &state);
        prop_assert!(place.restored("store", newest + 1) == state);
    }
}
