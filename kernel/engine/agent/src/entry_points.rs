//! The functions that programs call: the macro [`entry_points!`](crate::entry_points!) puts them
//! into the kernel, because their names are part of its rules about the hit path, and because those
//! in assembly need its distances from the GS base.
//!
//! ```text
//!   trace_record_of_size     a record of constant size           ─┐ the usual case; anything else
//!   trace_event_of_size      the same with the common header      ├─► again, in Rust: a new page,
//!   trace_event_with_room    the same with room for strings      ─┘ a nested writer, no room
//!   trace_ring_submit        the end of a record
//!   trace_…_by_word          finding, setting, counting and deleting by a key of 8 bytes
//!   trace_graph_…            the routines of the tracer of calls
//!   trace_…                  one for each helper that needs to know the kernel: a C function
//! ```
//!
//! What records are is in [`crate::records`], what helpers do in [`crate::helpers`].
//!
//! # Contexts
//! Any, with the CPU kept. For C functions DF and AC are clear. They are on the hit path. No kernel
//! may let them be probed.

#[doc(hidden)]
pub mod graph;
#[doc(hidden)]
pub mod routines;

/// Puts the functions that programs call into a kernel, and `trace_entry_points`, which
/// [`Traced::tracing_entry_points`](crate::Traced::tracing_entry_points) returns. Once, in any
/// module. It is part of [`tracing!`](crate::tracing!).
#[macro_export]
macro_rules! entry_points {
    ($agent:ty) => {
        $crate::routines!($agent);
        $crate::graph_routines!($agent);
        $crate::helper_functions! {
            $agent;
            trace_map_lookup = helpers::map_lookup(
                map: *const $crate::helpers::Tables,
                key: *const u8
            ) -> *mut u64;
            trace_map_update = helpers::map_update(
                map: *const $crate::helpers::Tables,
                key: *const u8,
                value: *const u8,
                flags: u64
            ) -> i64;
            trace_map_delete = helpers::map_delete(
                map: *const $crate::helpers::Tables,
                key: *const u8
            ) -> i64;
            trace_sum_of_cpus = helpers::sum_of_cpus(
                map: *const $crate::helpers::Tables,
                key: *const u8,
                word: u64
            ) -> u64;
            trace_most_of_cpus = helpers::most_of_cpus(
                map: *const $crate::helpers::Tables,
                key: *const u8,
                word: u64
            ) -> u64;
            trace_delete_of_cpus = helpers::delete_of_cpus(
                map: *const $crate::helpers::Tables,
                key: *const u8
            ) -> i64;
            trace_use_key = helpers::use_key(
                map: *const $crate::helpers::Tables,
                key: *const u8,
                how: u64
            ) -> i64;
            trace_add_by_key = helpers::add_by_key(
                map: *const $crate::helpers::Tables,
                key: *const u8,
                delta: u64
            ) -> i64;
            trace_pid_tgid = helpers::pid_tgid() -> u64;
            trace_comm = helpers::comm(buffer: *mut u8, size: u64) -> i64;
            trace_read_user = helpers::read_user(to: *mut u8, size: u64, from: u64) -> i64;
            trace_read_user_part = helpers::read_user_part(
                to: *mut u8,
                size: u64,
                from: u64,
                length: u64
            ) -> i64;
            trace_read_user_text = helpers::read_user_text(
                to: *mut u8,
                size: u64,
                from: u64
            ) -> i64;
            trace_text_bytes_of_user = helpers::text_bytes_of_user(from: u64, most: u64) -> u64;
            trace_read_kernel = helpers::read_kernel(to: *mut u8, size: u64, from: u64) -> i64;
            trace_read_kernel_part = helpers::read_kernel_part(
                to: *mut u8,
                size: u64,
                from: u64,
                length: u64
            ) -> i64;
            trace_read_kernel_text = helpers::read_kernel_text(
                to: *mut u8,
                size: u64,
                from: u64
            ) -> i64;
            trace_text_bytes_of_kernel = helpers::text_bytes_of_kernel(from: u64, most: u64) -> u64;
            trace_can_read = helpers::can_read(address: u64, length: u64, space: u64) -> u64;
            trace_append_user_text = helpers::append_user_text(
                record: *mut u8,
                from: u64,
                most: u64
            ) -> u64;
            trace_append_kernel_text = helpers::append_kernel_text(
                record: *mut u8,
                from: u64,
                most: u64
            ) -> u64;
            trace_ring_reserve = helpers::ring_reserve(
                _ring: u64,
                size: u64,
                _flags: u64
            ) -> *mut u8;
            trace_ring_discard = helpers::ring_discard(record: *mut u8, _flags: u64) -> ();
            trace_event_reserve = helpers::event_reserve(
                _ring: u64,
                size: u64,
                room: u64,
                kind: u64
            ) -> *mut u8;
            trace_not_recording = helpers::not_recording() -> u64;
            trace_stack_id = stacks::stack_id(
                sample: *const $crate::bpf_compiler::Sample,
                stacks: *const $crate::helpers::Stacks,
                flags: u64
            ) -> i64;
            trace_record_stack = stacks::record_stack(
                sample: *const $crate::bpf_compiler::Sample,
                _ring: u64,
                flags: u64
            ) -> i64;
            trace_trigger = helpers::trigger(number: u64, value: u64) -> u64;
            trace_aim_watch = helpers::aim_watch(number: u64, address: u64) -> u64;
            trace_watched_address = helpers::watched_address() -> u64;
            trace_true_address = helpers::true_address(slot: u64, value: u64) -> u64;
        }

        /// The functions that programs call.
        fn trace_entry_points() -> $crate::facts::EntryPoints {
            $crate::facts::EntryPoints {
                map_lookup: trace_map_lookup as *const () as u64,
                map_update: trace_map_update as *const () as u64,
                map_delete: trace_map_delete as *const () as u64,
                sum_of_cpus: trace_sum_of_cpus as *const () as u64,
                most_of_cpus: trace_most_of_cpus as *const () as u64,
                delete_of_cpus: trace_delete_of_cpus as *const () as u64,
                use_key: trace_use_key as *const () as u64,
                add_by_key: trace_add_by_key as *const () as u64,
                pid_tgid: trace_pid_tgid as *const () as u64,
                comm: trace_comm as *const () as u64,
                read_user: trace_read_user as *const () as u64,
                read_user_part: trace_read_user_part as *const () as u64,
                read_user_text: trace_read_user_text as *const () as u64,
                text_bytes_of_user: trace_text_bytes_of_user as *const () as u64,
                read_kernel: trace_read_kernel as *const () as u64,
                read_kernel_part: trace_read_kernel_part as *const () as u64,
                read_kernel_text: trace_read_kernel_text as *const () as u64,
                text_bytes_of_kernel: trace_text_bytes_of_kernel as *const () as u64,
                can_read: trace_can_read as *const () as u64,
                append_user_text: trace_append_user_text as *const () as u64,
                append_kernel_text: trace_append_kernel_text as *const () as u64,
                ring_reserve: trace_ring_reserve as *const () as u64,
                ring_discard: trace_ring_discard as *const () as u64,
                event_reserve: trace_event_reserve as *const () as u64,
                not_recording: trace_not_recording as *const () as u64,
                stack_id: trace_stack_id as *const () as u64,
                record_stack: trace_record_stack as *const () as u64,
                trigger: trace_trigger as *const () as u64,
                aim_watch: trace_aim_watch as *const () as u64,
                watched_address: trace_watched_address as *const () as u64,
                true_address: trace_true_address as *const () as u64,
                find_by_word: trace_find_by_word as *const () as u64,
                set_by_word: trace_set_by_word as *const () as u64,
                add_by_word: trace_add_by_word as *const () as u64,
                delete_by_word: trace_delete_by_word as *const () as u64,
                ring_submit: trace_ring_submit as *const () as u64,
                record_of_size: trace_record_of_size as *const () as u64,
                event_of_size: trace_event_of_size as *const () as u64,
                event_with_room: trace_event_with_room as *const () as u64,
                graph_root: $crate::facts::GraphEntry {
                    entry: trace_graph_root,
                    by_jump: Some(trace_graph_root_by_jump),
                },
                graph_inner: $crate::facts::GraphEntry {
                    entry: trace_graph_inner,
                    by_jump: Some(trace_graph_inner_by_jump),
                },
                graph_root_arguments: $crate::facts::GraphEntry {
                    entry: trace_graph_root_arguments,
                    by_jump: Some(trace_graph_root_arguments_by_jump),
                },
                graph_inner_arguments: $crate::facts::GraphEntry {
                    entry: trace_graph_inner_arguments,
                    by_jump: Some(trace_graph_inner_arguments_by_jump),
                },
                graph_hidden: $crate::facts::GraphEntry {
                    entry: trace_graph_hidden,
                    by_jump: None,
                },
                graph_return: trace_graph_return,
                graph_return_by_jump: trace_graph_return_by_jump,
            }
        }
    };
}

/// The C functions of helpers: each is the function of the same name of the crate, for one kernel.
#[doc(hidden)]
#[macro_export]
macro_rules! helper_functions {
    ($agent:ty; $($name:ident = $module:ident::$helper:ident(
        $($argument:ident: $type:ty),*
    ) -> $result:ty;)+) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                // SAFETY: a verified program calls it, which is what the function asks for.
                unsafe { $crate::$module::$helper::<$agent>($($argument),*) }
            }
        )+
    };
}
