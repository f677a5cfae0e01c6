//! Pools of real processes: started, joined, saved to, and killed at any moment.

mod pools;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use pools::{Pool, Process, exit_code, state};

#[test]
fn every_verb_works_on_a_pool() {
    let pool = Pool::start(&["--replicas", "2"]);
    let _lenders = pool.lenders(3);
    for step in 1..=3 {
        let saved = pool.save(step).output();
        assert!(saved.status.success(), "{}", String::from_utf8_lossy(&saved.stderr));
    }
    assert_eq!(pool.check_all(), [1, 2, 3]);
    assert!(pool.succeed(&["show", "melt", "--json"]).contains("\"durability\":\"replicated\""));
    assert_eq!(pool.succeed(&["latest", "melt"]).trim(), "3");
    assert!(pool.succeed(&["diff", "melt@1", "melt@2"]).contains("state.bin"));
    pool.succeed(&["restore", "melt@2", "--to", pool.path("out").to_str().expect("text")]);
    assert!(std::fs::read(pool.path("out/state.bin")).expect("restored") == state(2));
    pool.succeed(&["export", "melt@3", "--output", pool.path("three").to_str().expect("text")]);
    pool.succeed(&["import", pool.path("three").to_str().expect("text"), "--app", "copy"]);
    let session = pool.succeed(&["begin", "parts", "--step", "1"]).trim().to_owned();
    pool.succeed(&["add", &session, pool.path("three").to_str().expect("text")]);
    pool.succeed(&["commit", &session]);
    pool.succeed(&["policy", "melt", "--keep-last", "1"]);
    pool.succeed(&["prune"]);
    let used = |pool: &Pool| -> u64 {
        // What benefactors say of themselves is half a second old.
        std::thread::sleep(Duration::from_millis(1200));
        let status = pool.succeed(&["pool", "status", "--json"]);
        status
            .split("\"packs\":")
            .skip(1)
            .map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap())
            .sum()
    };
    let before = used(&pool);
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert!(used(&pool) < before);
    pool.succeed(&["verify"]);
    assert_eq!(pool.check_all(), [3]);
    for app in ["melt", "copy", "parts"] {
        pool.succeed(&["forget", app, "--all"]);
    }
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    assert_eq!(used(&pool), 0, "nothing is left");
}

/// What survived one benefactor's process only is as safe as was promised once the pool was waited for; and where it cannot be, that is said.
#[test]
fn waiting_for_a_pool_waits_for_every_copy() {
    let pool = Pool::start(&["--replicas", "2"]);
    let mut lenders = pool.lenders(1);
    pool.settle();
    std::fs::write(pool.path("state.bin"), state(1)).expect("a file");
    let save = ["save", "melt", "--durability", "staged", "--step"];
    let file = pool.path("state.bin");
    let saved = |step| pool.succeed(&[&save[..], &[step, file.to_str().expect("text")]].concat());
    saved("1");
    for _ in 0..3 {
        let waited = pool.run(&["pool", "wait", "--patience", "2s"]);
        let said = String::from_utf8_lossy(&waited.stderr).into_owned();
        assert!(!waited.status.success() && said.contains("fewer copies"), "{said}");
        assert!(!pool.succeed(&["pool", "status"]).contains("where it belongs"));
    }
    lenders.extend((1..4).map(|domain| pool.join(domain, &["--memory", "512MiB"])));
    pool.settle();
    std::fs::write(&file, state(2)).expect("a file");
    saved("2");
    pool.settle();
    lenders.remove(0).kill();
    assert_eq!(pool.check_all(), [1, 2]);
    pool.settle();
    lenders.remove(0).kill();
    assert_eq!(pool.check_all(), [1, 2]);
}

/// Eight benefactors, of which `at_once` are killed in the middle of a save or a restore, again and again; and managers, and savers.
fn killed(class: &'static [&'static str], at_once: usize) {
    let mut pool = Pool::start(class);
    let mut lenders = pool.lenders(8);
    let mut committed = Vec::new();
    for step in 1..=6u64 {
        let save = pool.save(step);
        std::thread::sleep(Duration::from_millis(step * 23 % 90));
        match step % 3 {
            // Benefactors, in the middle of a save; others come.
            1 => {
                lenders.drain(..at_once).for_each(Process::kill);
                let new = |more: usize| pool.join(step as usize * 10 + more, &["--memory", "512MiB"]);
                lenders.extend((0..at_once).map(new));
            }
            // The manager.
            2 => {
                pool.manager.take().expect("a manager").kill();
                pool.manage();
            }
            _ => {}
        }
        let saved = save.output();
        if saved.status.success() {
            committed.push(step);
        } else {
            let said = String::from_utf8_lossy(&saved.stderr).into_owned();
            assert!(said.contains("stdchk: "), "a clear error: {said}");
        }
        if step % 3 == 0 && committed.contains(&step) {
            // In the middle of a restore.
            let restore = pool.restore(step);
            std::thread::sleep(Duration::from_millis(step * 7));
            lenders.drain(..at_once).for_each(Process::kill);
            let restored = restore.output();
            assert!(restored.status.success(), "{}", String::from_utf8_lossy(&restored.stderr));
            let new = |more: usize| pool.join(step as usize * 10 + more, &["--memory", "512MiB"]);
            lenders.extend((0..at_once).map(new));
        }
        let listed = pool.check_all();
        assert!(committed.iter().all(|step| listed.contains(step)), "{committed:?} of {listed:?}");
        pool.settle();
    }
    assert!(committed.len() >= 3, "{committed:?}");
    // A saver that is killed leaves nothing.
    for after in [5, 40, 80] {
        let save = pool.save(100 + after);
        std::thread::sleep(Duration::from_millis(after));
        save.kill();
    }
    (0..3).for_each(|_| drop(pool.succeed(&["gc"])));
    let listed = pool.check_all();
    assert!(committed.iter().all(|step| listed.contains(step)));
    // Everything is as safe again as was promised.
    pool.succeed(&["verify"]);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_two_copies() {
    killed(&["--replicas", "2"], 1);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_three_copies() {
    killed(&["--replicas", "3"], 2);
}

#[test]
fn whoever_is_killed_takes_no_checkpoint_along_with_shards() {
    killed(&["--erasure", "4+2"], 2);
}

#[test]
fn a_folder_that_is_lent_again_has_what_it_had() {
    let mut pool = Pool::start(&[]);
    let folder = pool.path("lent");
    let lend = ["--disk", folder.to_str().expect("text"), "--size", "1GiB"];
    let lender = pool.join(0, &lend);
    assert!(pool.save(1).output().status.success());
    lender.kill();
    assert_ne!(exit_code(&pool.run(&["cat", "melt@1:state.bin"])), 0, "there is nobody who has it");
    pool.manager.take().expect("a manager").kill();
    pool.manage();
    let lender = pool.join(0, &lend);
    assert_eq!(pool.check_all(), [1]);
    // It goes as it should, and gives everything to another one.
    let _other = pool.join(1, &["--memory", "512MiB"]);
    pool.settle();
    assert!(lender.end());
    assert_eq!(pool.check_all(), [1]);
}

#[test]
fn a_dead_benefactor_is_not_waited_for_when_somebody_says_so() {
    let pool = Pool::start(&["--replicas", "2"]);
    let mut lenders = pool.lenders(3);
    assert!(pool.save(1).output().status.success());
    let dead = lenders.remove(0);
    let id = dead.said.split("\"benefactor\":\"").nth(1).expect("who it is")[..16].to_owned();
    dead.kill();
    let begun = std::time::Instant::now();
    pool.succeed(&["pool", "evict", &id]);
    pool.settle();
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(4), "it is gone before the pool's patience is over: {took:?}");
    assert_eq!(pool.check_all(), [1]);
    // One that lives comes back by itself.
    let id = lenders[0].said.split("\"benefactor\":\"").nth(1).expect("who it is")[..16].to_owned();
    pool.succeed(&["pool", "evict", &id]);
    let begun = std::time::Instant::now();
    while pool.succeed(&["pool", "status", "--json"]).matches("\"state\":\"ok\"").count() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(20), "it does not come back");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(pool.check_all(), [1]);
}

#[test]
fn whoever_has_no_key_is_told_so() {
    let pool = Pool::start(&[]);
    let _lenders = pool.lenders(1);
    let other = pool.path("other");
    assert!(pool.run(&["pool", "key", other.to_str().expect("text")]).status.success());
    assert_eq!(
        exit_code(&pool.run(&["pool", "key", other.to_str().expect("text")])),
        5,
        "keys are not written over"
    );
    let with = |key: &Path| {
        let mut command = pool.command();
        command.env("STDCHK_POOL_KEY", key).args(["list"]).output().expect("the binary starts")
    };
    let refused = with(&other);
    assert_eq!(exit_code(&refused), 10, "{}", String::from_utf8_lossy(&refused.stderr));
    assert_eq!(exit_code(&with(&pool.path("nothing"))), 4);
    std::fs::write(pool.path("rubbish"), "not a key").expect("a file");
    let modes = |mode| std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(pool.path("rubbish"), modes(0o644)).expect("modes");
    assert_eq!(exit_code(&with(&pool.path("rubbish"))), 10, "others can read it");
    std::fs::set_permissions(pool.path("rubbish"), modes(0o600)).expect("modes");
    assert_eq!(exit_code(&with(&pool.path("rubbish"))), 2);
    let without =
        pool.command().env_remove("STDCHK_POOL_KEY").args(["list"]).output().expect("the binary starts");
    assert_eq!(exit_code(&without), 2);
    for store in ["pool://", "pool://nowhere", "pool://127.0.0.1:99999", "pool://127.0.0.1:1/x"] {
        let bad =
            pool.command().env("STDCHK_STORE", store).args(["list"]).output().expect("the binary starts");
        assert_eq!(exit_code(&bad), 2, "{store}: {}", String::from_utf8_lossy(&bad.stderr));
    }
    let begun = Instant::now();
    let nobody =
        pool.command().env("STDCHK_STORE", "pool://127.0.0.1:1").args(["list"]).output().expect("starts");
    assert!(exit_code(&nobody) == 1 && begun.elapsed() < Duration::from_secs(10));
    let directory = pool.path("directory");
    let mut local = pool.command();
    local
        .env("STDCHK_STORE", &directory)
        .args(["save", "x", "--step", "1", "--durability", "replicated"])
        .arg(&other);
    assert_eq!(exit_code(&local.output().expect("the binary starts")), 6, "a directory keeps one copy");
}

#[test]
fn processes_say_how_they_are() {
    let mut pool = Pool::start(&["--metrics", "127.0.0.1:0"]);
    let lender = pool.join(0, &["--memory", "512MiB", "--metrics", "127.0.0.1:0"]);
    assert!(pool.save(1).output().status.success());
    let manager = pool.manager.take().expect("a manager");
    assert_eq!((manager.metric("stdchk_checkpoints"), manager.metric("stdchk_members")), (1, 1));
    assert!(manager.metric("stdchk_questions_total{question=\"append\"}") >= 2);
    assert_eq!(lender.metric("stdchk_lent_bytes{medium=\"memory\"}"), 512 << 20);
    assert!(lender.metric("stdchk_received_bytes_total{medium=\"memory\"}") > 24 << 20);
    assert!(
        lender.metric("stdchk_used_bytes{medium=\"memory\"}")
            >= lender.metric("stdchk_received_bytes_total{medium=\"memory\"}")
    );
    assert!(lender.metric("stdchk_questions_total{question=\"put\",medium=\"memory\"}") > 0);
    drop(manager);
}

#[test]
fn the_status_says_what_goes_on() {
    let pool = Pool::start(&[]);
    let _lender = pool.join(0, &["--memory", "512MiB"]);
    assert!(pool.save(1).output().status.success());
    until(&pool, "24 MiB came", |status| {
        let rate = status.split("\"received_bytes_per_s\":").nth(1).and_then(|rest| rest.split(',').next());
        rate.and_then(|rate| rate.parse::<u64>().ok()).is_some_and(|rate| rate > 1 << 20)
    });
    until(&pool, "and nothing more", |status| status.contains("\"received_bytes_per_s\":0"));
}

#[test]
fn what_cannot_be_lent_is_refused() {
    let pool = Pool::start(&[]);
    let folder = pool.path("lent");
    let folder = folder.to_str().expect("text");
    for lend in [
        &["--memory", "900TiB"][..],
        &["--disk", folder, "--size", "900PiB"],
        &["--memory", "1MiB", "--domain", ""],
        &["--memory", "1MiB", "--domain", "two\nlines"],
    ] {
        let refused = pool.run(&[&["pool", "join", &pool.place][..], lend].concat());
        assert_eq!(exit_code(&refused), 2, "{lend:?}: {}", String::from_utf8_lossy(&refused.stderr));
    }
}

/// Waits until the status of the pool is as it should be.
fn until(pool: &Pool, what: &str, is_so: impl Fn(&str) -> bool) {
    let begun = Instant::now();
    loop {
        let status = pool.succeed(&["pool", "status", "--json"]);
        if is_so(&status) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{what}: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Every process says what it did for a save, by the save's session.
#[test]
fn a_save_can_be_followed_through_the_pool() {
    let mut pool = Pool::start(&["--replicas", "2"]);
    pool.environment.push(("STDCHK_LOG", "debug".to_owned()));
    pool.environment.push(("STDCHK_LOG_FORMAT", "json".to_owned()));
    pool.manager.take().expect("a manager").kill();
    pool.manage();
    let log = |name: usize| pool.path(&format!("log{name}"));
    let _lenders: Vec<Process> = (0..2)
        .map(|domain| {
            let mut command = pool.command();
            command.args(["pool", "join", &pool.place, "--json", "--memory", "256MiB"]);
            command.args(["--domain", &format!("host={domain}")]);
            Process::start_with(command, std::fs::File::create(log(domain)).expect("a file").into())
        })
        .collect();
    let metrics = pool.path("save.prom");
    std::fs::write(pool.path("state.bin"), state(1)).expect("a file");
    let mut save = pool.command();
    save.args(["save", "melt", "--step", "7", "--metrics-file"]).arg(&metrics).arg(pool.path("state.bin"));
    let saved = save.output().expect("the binary starts");
    let said = String::from_utf8(saved.stderr).expect("text");
    assert!(saved.status.success(), "{said}");
    let line = said.lines().find(|line| line.contains("\"name\":\"save\"")).expect("the save itself");
    let session = &line.split("\"session\":\"").nth(1).expect("its session")[..16];
    let speaks_of = |text: &str, doing: &str, question: &str| {
        text.lines().any(|line| {
            line.starts_with("{\"timestamp\":")
                && [doing, question, session].iter().all(|word| line.contains(word))
        })
    };
    assert!(
        speaks_of(&said, "\"asked\"", "\"put\"") && speaks_of(&said, "\"asked\"", "\"append\""),
        "{said}"
    );
    let logs: String = (0..2).map(|domain| std::fs::read_to_string(log(domain)).expect("a log")).collect();
    for (doing, question) in
        [("\"answered\"", "\"put\""), ("\"asked\"", "\"put\""), ("\"secure\"", "\"pack\"")]
    {
        assert!(speaks_of(&logs, doing, question), "{doing} {question}: {logs}");
    }
    let page = std::fs::read_to_string(metrics).expect("figures");
    assert!(page.contains("stdchk_save_step{app=\"melt\"} 7\n"), "{page}");
    assert!(page.contains(&format!("stdchk_save_bytes{{app=\"melt\"}} {}\n", 24 << 20)), "{page}");
}

#[test]
fn one_process_lends_memory_and_a_folder() {
    let pool = Pool::start(&["--replicas", "2"]);
    let join = |domain: usize| {
        let folder = pool.path(&format!("lent{domain}"));
        let folder = folder.to_str().expect("text");
        let both = ["--memory", "256MiB", "--disk", folder, "--size", "256MiB", "--metrics", "127.0.0.1:0"];
        pool.join(domain, &both)
    };
    let mut lenders: Vec<Process> = (0..3).map(join).collect();
    until(&pool, "six members", |status| {
        status.matches("\"medium\":\"memory\"").count() == 3
            && status.matches("\"medium\":\"disk\"").count() == 3
    });
    for step in 1..=3 {
        assert!(pool.save(step).output().status.success());
    }
    for medium in ["memory", "disk"] {
        let packs = format!("stdchk_packs{{medium=\"{medium}\"}}");
        assert!(lenders.iter().map(|lender| lender.metric(&packs)).sum::<u64>() > 0, "{medium} holds some");
    }
    // What is in its memory and in its folder fails together, and is never all that there is.
    lenders.remove(0).kill();
    assert_eq!(pool.check_all(), [1, 2, 3]);
    until(&pool, "both are lost", |status| status.matches("\"benefactor\":").count() == 4);
    pool.settle();
    // It goes as a whole.
    assert!(lenders.remove(0).end());
    pool.settle();
    assert_eq!(pool.check_all(), [1, 2, 3]);
}

#[test]
fn a_benefactor_steps_back_while_its_owner_wants_the_machine() {
    let pool = Pool::start(&["--replicas", "2"]);
    let lend = ["--memory", "512MiB", "--yield-when", "signal,load=1", "--calm", "1s"];
    let lenders: Vec<Process> = (0..3).map(|domain| pool.join(domain, &lend)).collect();
    assert!(pool.save(1).output().status.success());
    let signal = |which: &str| {
        let id = lenders[0].child.id().to_string();
        assert!(std::process::Command::new("kill").args([which, &id]).status().expect("kill").success());
    };
    signal("-USR1");
    until(&pool, "it gives all away", |status| {
        status.matches("\"benefactor\":").count() == 2 && !status.contains("leaving")
    });
    assert!(pool.save(2).output().status.success());
    assert_eq!(pool.check_all(), [1, 2]);
    // It runs all the time, and lends again.
    signal("-USR2");
    until(&pool, "it is back", |status| status.matches("\"state\":\"ok\"").count() == 3);
    pool.settle();
    assert_eq!(pool.check_all(), [1, 2]);
    // Where all of them are wanted, what nobody else can take stays where it is.
    for lender in &lenders {
        let id = lender.child.id().to_string();
        assert!(std::process::Command::new("kill").args(["-USR1", &id]).status().expect("kill").success());
    }
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(pool.check_all(), [1, 2]);
    let refused = pool.save(3).output();
    assert!(!refused.status.success(), "nobody lends");
    signal("-USR2");
    until(&pool, "one is back", |status| status.matches("\"state\":\"leaving\"").count() == 2);
    assert_eq!(pool.check_all(), [1, 2]);
    let few = pool.run(&["pool", "join", &pool.place, "--memory", "64MiB", "--yield-when", "noon"]);
    assert_eq!(exit_code(&few), 2);
}

/// What the owner wants is not forgotten because nobody could be told.
#[test]
fn a_benefactor_steps_back_when_the_manager_is_there_again() {
    let mut pool = Pool::start(&[]);
    let lend = ["--memory", "256MiB", "--yield-when", "signal", "--calm", "1s"];
    let lenders: Vec<Process> = (0..2).map(|domain| pool.join(domain, &lend)).collect();
    pool.manager.take().expect("a manager").kill();
    let id = lenders[0].child.id().to_string();
    assert!(std::process::Command::new("kill").args(["-USR1", &id]).status().expect("kill").success());
    // Longer than it waits for a manager.
    std::thread::sleep(Duration::from_secs(13));
    pool.manage();
    until(&pool, "it leaves", |status| status.matches("\"benefactor\":").count() == 1);
}

#[test]
fn all_of_a_machine_leave_with_one_word() {
    let pool = Pool::start(&[]);
    let lenders = pool.lenders(2);
    assert!(pool.save(1).output().status.success());
    let said = pool.succeed(&["pool", "leave", "--json"]);
    assert_eq!(said.lines().count(), 2, "{said}");
    // There is nobody to whom they could give what they have.
    assert_eq!(pool.check_all(), [1]);
    let other = pool.join(5, &["--memory", "512MiB"]);
    for mut lender in lenders {
        assert!(lender.child.wait().expect("it ends").success(), "it ends when all is given away");
    }
    assert_eq!(pool.check_all(), [1]);
    drop(other);
    assert_eq!(exit_code(&pool.run(&["pool", "leave", "0123456789abcdef"])), 4);
}
