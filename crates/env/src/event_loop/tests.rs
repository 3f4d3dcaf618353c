//! Tests of the event loop: turns, timers, polling, and the measurement of idle time.

use super::*;

#[test]
fn futures_take_turns_and_timers_fire_in_order() {
    let order = block_on(async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks: Vec<_> = [300_u64, 100, 200]
            .into_iter()
            .map(|delay| {
                let order = Rc::clone(&order);
                spawn(async move {
                    sleep(Duration::from_millis(delay)).await;
                    order.borrow_mut().push(delay);
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        order.take()
    });
    assert_eq!(order.unwrap(), [100, 200, 300]);
}

/// Before the fix, each loop numbered its operations from zero, and the dropped future removed an
/// operation of the new loop.
#[test]
fn operation_of_an_earlier_loop_does_not_affect_a_later_loop() {
    let event = Event::new_nonblocking().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fd = event.fd().as_raw_fd();
            let submit_poll = move || {
                let poll =
                    io_uring::opcode::PollAdd::new(types::Fd(fd), libc::POLLIN as u32).build();
                // SAFETY: the entry refers to no memory.
                unsafe { submit(squeue::Entry128::from(poll), Box::new(())) }
            };
            // The future is wrapped in `Some`, because it must outlive its loop.
            let old = block_on(async move { Some(submit_poll()) }).unwrap();
            block_on(async move {
                let new = submit_poll();
                drop(old);
                assert!(with_loop(|it| it.ops.contains_key(&new.number())));
            })
            .unwrap();
        });
    });
}

/// Before the fix, the operations in flight kept the descriptors of an ended loop until the end of
/// the process. The peers waited for replies for ever.
#[test]
fn connections_of_an_ended_thread_are_closed() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let thread = std::thread::spawn(move || {
        block_on(async move {
            let stream = crate::TcpStream::connect(&address).await.unwrap();
            // The test starts more operations than the submission queue has entries.
            for _ in 0..2 * SUBMISSION_ENTRIES {
                let stream = stream.clone();
                spawn(async move { stream.receive(crate::Buf::new(8)).await }).detach();
            }
            // The loop submits the operations.
            sleep(Duration::from_millis(1)).await;
        })
    });
    let (mut peer, _) = listener.accept().unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    assert_eq!(std::io::Read::read(&mut peer, &mut [0; 1]).unwrap(), 0, "the end of the stream");
    thread.join().unwrap().unwrap();
}

/// A metadata target sends replies before it applies changes to its store, because the store blocks
/// the thread.
#[test]
fn begun_send_reaches_the_peer_before_the_thread_blocks() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    block_on(async move {
        let stream = crate::TcpStream::connect(&address).await.unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let sent = vec![crate::MessagePart::Bytes(vec![7])];
        let sending = spawn(async move { stream.send(sent).await });
        yield_now().await;
        submit_begun();
        let mut received = [0];
        // This call blocks the thread of the loop.
        std::io::Read::read_exact(&mut peer, &mut received).unwrap();
        assert_eq!(received, [7]);
        sending.await.unwrap();
    })
    .unwrap();
}

#[test]
fn idle_time_is_the_time_without_work() {
    let (idle, work) = block_on(async {
        let before = idle_time();
        sleep(Duration::from_millis(20)).await;
        let slept = idle_time() - before;
        let until = clock::now() + Duration::from_millis(10);
        while clock::now() < until {
            std::hint::spin_loop();
        }
        yield_now().await;
        (slept, idle_time() - before - slept)
    })
    .unwrap();
    assert!(idle >= Duration::from_millis(19), "{idle:?}");
    assert!(work < Duration::from_millis(10), "{work:?}");
}

#[test]
fn timeout_drops_an_unfinished_future() {
    let result =
        block_on(async { timeout(Duration::from_millis(5), std::future::pending::<()>()).await });
    assert_eq!(result.unwrap(), None);
}

#[test]
fn event_loop_polls_before_a_sleep_only_after_traffic() {
    let polls = |traffic| {
        block_on(async move {
            set_spin(Duration::from_micros(50));
            with_loop(|it| it.spin.set_conversation(traffic, clock::now()));
            sleep(Duration::from_millis(20)).await;
            with_loop(|it| it.spin.rounds() > 0)
        })
        .unwrap()
    };
    assert!(!polls(Traffic::Received), "no reply is outstanding");
    // On a busy machine, the kernel may run the thread again only after the conversation has ended.
    // So the test makes several attempts.
    assert!((0..50).any(|_| polls(Traffic::Sent)));
}
