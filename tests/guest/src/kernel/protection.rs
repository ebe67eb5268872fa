//! The processor's protection of the kernel, and the part of it that the kernel leaves off.

use core::{
    arch::asm,
    hint,
    sync::atomic::{AtomicU64, Ordering::SeqCst},
};
use kernel::{
    arch::{percpu, smp},
    mm::{
        FRAME_SIZE, Frame, init_text,
        paging::{self, AddressSpace, Protection},
    },
    task::{TaskRef, kthread::spawn_kthread_on},
};
use x86_64::registers::control::Cr4;

fn spawn_on(cpu: usize, body: impl FnOnce() + Send + 'static) -> TaskRef {
    spawn_kthread_on(1 << cpu, "test", body).expect("memory for a thread")
}

fn this_much_stack(depth: u64) -> u64 {
    let bytes = hint::black_box([depth; 64]);
    if depth == u64::MAX {
        0
    } else {
        this_much_stack(depth + 1) + bytes[63]
    }
}

#[guest_test]
fn no_page_is_writable_and_executable() {
    let mut pages = 0;
    let mut executable = 0;
    paging::for_each_kernel_mapping(|mapping| {
        assert!(!(mapping.writable && mapping.executable), "{mapping:x?}");
        assert!(!mapping.user, "{mapping:x?}");
        pages += 1;
        executable += u64::from(mapping.executable);
    });
    assert!(
        executable > 0 && pages > executable,
        "{executable} of {pages} pages"
    );
}

/// Return probes rely on it: no copy of the return addresses is compared with them, and no indirect
/// branch wants a landing pad where a trampoline begins.
#[guest_test]
fn no_processor_has_shadow_stacks_or_branch_tracking_on() {
    const CET: u64 = 1 << 23;
    static SEEN: AtomicU64 = AtomicU64::new(0);
    SEEN.store(0, SeqCst);
    for cpu in 0..smp::online_cpus() {
        spawn_on(cpu, move || {
            let flags = Cr4::read_raw();
            assert_eq!(flags & CET, 0, "CPU {cpu}: CR4 is {flags:#x}");
            SEEN.fetch_or(1 << percpu::cpu_id(), SeqCst);
        })
        .wait_released();
    }
    assert_eq!(SEEN.load(SeqCst), (1 << smp::online_cpus()) - 1);
}

#[guest_test(should_panic = "kernel stack overflow, in task overflower")]
fn stack_overflow_names_the_task() {
    let thread = kernel::task::spawn_kthread("overflower", || {
        hint::black_box(this_much_stack(0));
    });
    thread.expect("memory for a thread").wait_released();
}

#[guest_test(should_panic = "cannot write 0xffffffff80")]
fn store_to_kernel_text_is_refused() {
    let text = (this_much_stack as *const ()).cast_mut().cast::<u8>();
    // SAFETY: does not come back: text is not writable.
    unsafe { text.write_volatile(0x90) };
}

#[guest_test(should_panic = "cannot execute")]
fn data_is_not_executable() {
    let code = alloc::boxed::Box::new([0xc3_u8]);
    // SAFETY: does not come back: the heap is not executable.
    let function: extern "C" fn() = unsafe { core::mem::transmute(code.as_ptr()) };
    function();
}

#[guest_test(should_panic = "cannot read 0x10")]
fn null_pointer_with_an_offset_is_reported() {
    // SAFETY: does not come back: the lower half is empty.
    unsafe { asm!("mov rax, [rax]", inout("rax") 0x10_u64 => _) };
}

#[guest_test(should_panic = "invalid opcode, in task")]
fn vector_instruction_is_refused() {
    // SAFETY: does not come back: CR4.OSFXSR is clear.
    unsafe { asm!("xorps xmm0, xmm0", options(nomem, nostack)) };
}

#[guest_test]
fn init_text_is_gone_after_the_boot() {
    assert!(init_text::is_freed() && !init_text::range().is_empty());
    for address in init_text::range().step_by(FRAME_SIZE) {
        let address = x86_64::VirtAddr::new(address);
        assert_eq!(paging::translate_kernel(address), None);
        assert!(
            paging::text_alias(address).is_null(),
            "there is nothing to write any more"
        );
    }
}

#[guest_test]
fn text_alias_shows_the_text() {
    let text = this_much_stack as *const u8;
    let alias = paging::text_alias(x86_64::VirtAddr::from_ptr(text));
    // SAFETY: both are mapped and readable.
    assert_eq!(unsafe { alias.cast::<[u8; 16]>().read() }, unsafe {
        text.cast::<[u8; 16]>().read()
    });
}

#[guest_test]
fn address_space_gives_its_tables_back() {
    let before = kernel::mm::frame::free_frames();
    let page = Frame::alloc_zeroed().expect("memory");
    let mut space = AddressSpace::new().expect("memory");
    let address = x86_64::VirtAddr::new(0x1234_5000);
    // SAFETY: the frame lives longer than the address space, which nothing runs in.
    unsafe { space.map(address, page.phys(), Protection::ReadWrite) }.expect("free");
    assert_eq!(
        space.translate(address + 5).map(|(phys, _)| phys),
        Some(page.phys() + 5)
    );
    space.write_protect(address);
    space.for_each_mapping(|mapping| {
        assert_eq!(
            (mapping.page, mapping.phys, mapping.writable, mapping.user),
            (address, page.phys(), false, true)
        );
    });
    assert!(space.unmap(address) && !space.unmap(address));
    drop((space, page));
    assert_eq!(kernel::mm::frame::free_frames(), before);
}
