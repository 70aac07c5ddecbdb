//! What a case may take.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// The system's allocator, which counts the bytes that are in use.
struct Counting;

static USED: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

fn add(bytes: usize) {
    let used = USED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    MOST.fetch_max(used, Ordering::Relaxed);
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size());
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist for a moment.
        add(size);
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Ordering::Relaxed);
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What is in use whatever the input: packs, threads' scratch.
const BASE: usize = 64 << 20;
/// For each byte of input.
const TIMES: usize = 32;

/// Does `f` with an input of `bytes`, and no other such thing meanwhile: it takes memory in proportion.
#[track_caller]
pub fn bounded<T>(bytes: usize, f: impl FnOnce() -> T) -> T {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let before = USED.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    let done = f();
    let took = MOST.load(Ordering::Relaxed).saturating_sub(before);
    assert!(took <= BASE + TIMES * bytes, "{bytes} bytes of input took {took} bytes of memory");
    done
}

#[test]
#[should_panic(expected = "bytes of memory")]
fn too_much_memory_is_noticed() {
    bounded(1000, || vec![0u8; 2 * BASE]);
}
