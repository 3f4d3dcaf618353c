//! Tests of targets that share an event loop. The tests freeze the file system while one of these
//! targets starts or ends, so its writes and syncs block.

use super::*;
use skep_testkit::target_disk::Frozen;
use skep_testkit::thin::ThinDisk;

/// The start and the end of a target sync its records. These syncs must not run in the loop.
#[test]
fn target_serves_while_targets_of_its_loop_start_and_end() {
    run(|dir| async move {
        let Some(disk) = ThinDisk::new(&dir, 100) else { return };
        let [one, other] = ["one", "other"].map(|name| {
            let path = disk.path().join(name);
            std::fs::create_dir(&path).unwrap();
            directory(&path)
        });
        let loops = Arc::new(EventLoops::with_limit(1));
        let start = |directory| {
            let emulation = StorageSettings::default().emulation;
            begin(directory, map(), emulation, Arc::clone(&loops))
        };
        let (serving, is_ready) = start(one);
        is_ready.receive().await.unwrap();
        let connection = connect(&serving, Channel::NONE).await;
        write(&connection, key(1), b"kept").await.unwrap();

        let frozen = Frozen::new(&disk.path());
        let (another, is_ready) = start(other);
        assert_serves_for_a_while(&connection).await;
        drop(frozen);
        is_ready.receive().await.unwrap();
        let frozen = Frozen::new(&disk.path());
        another.events.send(TargetEvent::Stop).unwrap();
        assert_serves_for_a_while(&connection).await;
        assert!(!another.thread.is_finished(), "the end waits for the disk");
        drop(frozen);
        another.thread.join().unwrap().unwrap();
        end(serving);
    });
}

/// Repeatedly reads the file that the test has written, and checks that no read is delayed.
/// Continues until another target has certainly begun to start or to end.
async fn assert_serves_for_a_while(connection: &Rc<Connection>) {
    let until = skep_env::now() + Duration::from_millis(500);
    while skep_env::now() < until {
        let reading = read(connection, key(1), 10);
        let found = skep_env::timeout(Duration::from_secs(20), reading).await;
        assert_eq!(found.expect("the loop is not blocked").unwrap(), b"kept");
    }
}
