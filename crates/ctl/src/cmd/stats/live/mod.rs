//! The live view of `skep stats` on a terminal: shows the load of each interval, and follows the
//! keys of the user.
//!
//! This file contains the event loop, which waits for keys, signals and replies, and changes the
//! state at each event. [`view`] is the state, [`mod@screen`] computes the lines of the screen,
//! [`figures`] asks for the load, and [`terminal`] sets the modes of the terminal. The loop ends
//! with the key `q` or with a signal, and the terminal is restored before the process ends.

mod columns;
mod figures;
mod keys;
mod screen;
mod terminal;
mod view;

use super::selection::Filter;
use super::show::{line_named, sum};
use super::{Division, SpanArgs, own};
use crate::failure::{describe, without_errno};
use crate::table_layout;
use columns::Column;
pub(super) use figures::Source;
use figures::{Figures, Reply};
use keys::Key;
use screen::{Content, frame, screen};
use skep_env::{Signals, UntilSignal};
use skep_stats::LoadScope;
use skep_types::{Error, Result};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use terminal::Terminal;
pub(super) use terminal::is_available;
use view::{Effect, Level, Order, Size, View};

/// The signals that the loop receives. By default, the first four signals end a program, and the
/// next two signals stop and continue a program. The last signal reports a new size of the
/// terminal.
const SIGNALS: [i32; 7] = [
    libc::SIGINT,
    libc::SIGTERM,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGCONT,
    libc::SIGWINCH,
];

/// The reason why the live view ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// The user has pressed `q`.
    Quit,
    /// This signal ends the process.
    Signal(i32),
}

/// An event to which the live view reacts.
enum Event {
    Keys(Vec<Key>),
    Signal(i32),
    /// The source has replied, or the request has failed.
    Reply(Result<Reply>),
}

/// A request to the source that is in flight, or that will be sent at a later time.
type Question = Pin<Box<dyn Future<Output = Result<Reply>>>>;

/// Takes the signals that the live view receives. The caller must call this function before the
/// process starts any thread. Otherwise the kernel may deliver a signal to that thread, and the
/// process would end without restoring the terminal.
///
/// # Errors
/// Returns an error if the process is out of file descriptors.
pub(super) fn take_signals() -> Result<Signals> {
    Ok(Signals::take(&SIGNALS)?)
}

/// Shows the load on the terminal of this process until the user quits. `signals` come from
/// [`take_signals`].
///
/// # Errors
/// - The errors of the first request. Later errors are shown on the screen.
/// - Errors of the terminal.
/// - Errors of the options that name a node or a column.
pub(super) fn show(source: Source, by: Division, span: SpanArgs, signals: Signals) -> Result<()> {
    let end = crate::cmd::block_on(async move { run(source, by, &span, signals).await })?;
    if let End::Signal(number) = end {
        // The terminal is restored, so the signal may end the process as usual.
        Signals::end_process(number);
    }
    Ok(())
}

async fn run(source: Source, by: Division, span: &SpanArgs, signals: Signals) -> Result<End> {
    let first = loop {
        match signals.until_signal(source.ask(by, span.interval)).await? {
            UntilSignal::Ready(reply) => break reply?,
            UntilSignal::Signal(libc::SIGWINCH | libc::SIGCONT) => {}
            UntilSignal::Signal(libc::SIGTSTP) => stop_process()?,
            UntilSignal::Signal(number) => return Ok(End::Signal(number)),
        }
    };
    let levels = levels(span, by, &first)?;
    let terminal_size = Size { columns: 0, rows: 0 };
    let mut view = View::new(levels, span.interval, terminal_size, source.is_own());
    let has_titles = apply_layout(&mut view)?;
    while !terminal::is_in_foreground() {
        // The user has started the command in the background. The command stops here, and continues
        // in the foreground.
        stop_process()?;
    }
    let terminal = Terminal::enter()?;
    view.size = terminal.size();
    let mut live = Live {
        source: Rc::new(source),
        view,
        figures: Figures::default(),
        terminal,
        signals,
        question: None,
        problem: None,
        is_stopped: false,
        has_titles,
    };
    live.on_reply(Ok(first));
    loop {
        live.draw()?;
        let event = live.next().await?;
        if let Some(end) = live.apply(event)? {
            return Ok(end);
        }
    }
}

/// Returns the first levels of the view. With `--node`, the level of the node is shown, below the
/// level of the cluster.
fn levels(span: &SpanArgs, by: Division, first: &Reply) -> Result<Vec<Level>> {
    let (scope, filter) = (span.selection.scope(&first.map)?, span.selection.filter());
    let cluster = |by, filter| Level::new(by, LoadScope::default(), "cluster".into(), filter);
    let Some(node) = scope.node else { return Ok(vec![cluster(by, filter)]) };
    let found = first.map.nodes.iter().find(|it| it.id.raw() == node);
    let name = found.map_or_else(|| node.to_string(), |it| it.name.clone());
    let all = cluster(Division::Node, Filter::default());
    Ok(vec![all, Level::new(by, scope, name, filter)])
}

/// Applies `--columns`, `--sort` and `--no-header` to the view. Returns whether the table has a
/// line of titles.
///
/// # Errors
/// `InvalidArgument` if the table lacks a column.
fn apply_layout(view: &mut View) -> Result<bool> {
    let layout = table_layout::requested();
    let (columns, by) = (view.columns(), view.by());
    let titles: Vec<_> = columns.iter().map(|column| column.title(by).to_owned()).collect();
    let selected = layout.columns_among(&titles)?.into_iter().map(|at| columns[at]).collect();
    let order = match layout.sort_among(&titles)? {
        None => Order { column: None, is_reversed: false },
        Some((at, is_descending)) => {
            let is_name = columns[at] == Column::Name;
            // The usual order of names is ascending, and that of numbers is descending.
            Order { column: Some(columns[at]), is_reversed: is_descending == is_name }
        }
    };
    view.set_layout(selected, order);
    Ok(layout.has_titles())
}

/// Stops this process, as the shell expects after Ctrl-Z.
fn stop_process() -> Result<()> {
    skep_env::send_signal(std::process::id(), libc::SIGSTOP)?;
    Ok(())
}

/// The live view while it runs.
struct Live {
    source: Rc<Source>,
    view: View,
    figures: Figures,
    terminal: Terminal,
    signals: Signals,
    /// The next request. `None` while the user has paused the view.
    question: Option<Question>,
    /// The error of the last request.
    problem: Option<String>,
    /// Whether Ctrl-Z has stopped the process. While the process is stopped, the shell uses the
    /// terminal.
    is_stopped: bool,
    has_titles: bool,
}

impl Live {
    /// Waits for the next event. If a caller drops the future and calls the method again, no event
    /// is lost.
    async fn next(&mut self) -> Result<Event> {
        let Self { terminal, signals, question, .. } = self;
        let mut keys = std::pin::pin!(terminal.keys());
        let mut signal = std::pin::pin!(signals.next());
        std::future::poll_fn(|context| {
            if let Poll::Ready(number) = signal.as_mut().poll(context) {
                return Poll::Ready(number.map(Event::Signal).map_err(Error::from));
            }
            if let Poll::Ready(keys) = keys.as_mut().poll(context) {
                return Poll::Ready(keys.map(Event::Keys));
            }
            match question.as_mut() {
                Some(question) => question.as_mut().poll(context).map(|it| Ok(Event::Reply(it))),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Changes the state at an event. If the event ends the view, returns the reason for the end.
    fn apply(&mut self, event: Event) -> Result<Option<End>> {
        match event {
            Event::Reply(reply) => self.on_reply(reply),
            Event::Signal(number) => return self.on_signal(number),
            Event::Keys(keys) => {
                for key in keys {
                    if let Some(end) = self.on_key(key)? {
                        return Ok(Some(end));
                    }
                }
            }
        }
        Ok(None)
    }

    fn on_reply(&mut self, reply: Result<Reply>) {
        match reply {
            Ok(reply) => {
                self.figures.add(reply);
                self.problem = None;
            }
            Err(error) => self.problem = Some(without_errno(&describe(&error))),
        }
        self.question = Some(self.ask_after(self.view.interval));
    }

    fn on_key(&mut self, key: Key) -> Result<Option<End>> {
        let by = self.view.by();
        let lines = self.figures.lines(self.view.level());
        match self.view.press(key, lines.as_deref().unwrap_or_default()) {
            Effect::Quit => return Ok(Some(End::Quit)),
            Effect::DrawAnew => self.terminal.clear()?,
            Effect::Measure => self.measure(),
            Effect::Draw => {}
        }
        if self.view.is_paused {
            self.question = None;
        } else if self.source.is_own()
            && own::division_name(by) != own::division_name(self.view.by())
        {
            // A mount counts for one kind of objects at a time, and the user has chosen another
            // kind.
            self.figures.interrupt();
            self.question = Some(self.ask_after(Duration::ZERO));
        }
        Ok(None)
    }

    /// Continues with a changed interval, or after a pause.
    fn measure(&mut self) {
        let was_paused = self.question.is_none();
        if was_paused {
            self.figures.interrupt();
        }
        let wait = if was_paused { Duration::ZERO } else { self.view.interval };
        self.question = Some(self.ask_after(wait));
    }

    fn ask_after(&self, wait: Duration) -> Question {
        let (source, by, interval) = (Rc::clone(&self.source), self.view.by(), self.view.interval);
        Box::pin(async move {
            skep_env::sleep(wait).await;
            source.ask(by, interval).await
        })
    }

    fn on_signal(&mut self, number: i32) -> Result<Option<End>> {
        match number {
            libc::SIGWINCH => {
                self.view.size = self.terminal.size();
                self.terminal.clear()?;
            }
            libc::SIGTSTP => {
                self.terminal.release();
                self.is_stopped = true;
                stop_process()?;
            }
            libc::SIGCONT if !terminal::is_in_foreground() => {
                // The user has continued the command in the background. There, the command draws
                // nothing.
                self.is_stopped = true;
                stop_process()?;
            }
            libc::SIGCONT => {
                self.is_stopped = false;
                self.terminal.take_again()?;
                self.view.size = self.terminal.size();
                // The process may have been stopped for a long time, so the interval begins again.
                if !self.view.is_paused {
                    self.question = None;
                    self.measure();
                }
            }
            number => return Ok(Some(End::Signal(number))),
        }
        Ok(None)
    }

    fn draw(&mut self) -> Result<()> {
        if self.is_stopped {
            return Ok(());
        }
        let lines = self.figures.lines(self.view.level());
        let rows = self.view.arranged(lines.as_deref().unwrap_or_default());
        let sum = line_named(&sum(rows), String::new());
        let mut problems: Vec<_> = self.problem.iter().cloned().collect();
        let unreachable = self.figures.unreachable().iter();
        problems.extend(unreachable.map(|it| format!("cannot get statistics from {it}")));
        let content = Content {
            lines: lines.as_deref(),
            sum: &sum,
            problems: &problems,
            has_titles: self.has_titles,
        };
        let lines = screen(&self.view, &content);
        self.terminal.draw(frame(&lines))
    }
}
