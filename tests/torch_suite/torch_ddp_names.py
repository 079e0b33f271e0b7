"""Names of torch's tests that run on CPUs, and of those that cannot hold for an attached model, with
reasons."""

from __future__ import annotations

PASS_PLAIN = (
    "test_DistributedDataParallelCPU",
    "test_DistributedDataParallelCPU_grad_is_view",
    "test_DistributedDataParallel_requires_grad",
    "test_DistributedDataParallel_with_amp_and_grad_is_view",
    "test_DistributedSampler_padding",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_ddp_apply_optim_in_backward",
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false",
    "test_ddp_apply_optim_in_backward_ignored_params",
    "test_ddp_broadcast_buffer",
    "test_ddp_broadcast_buffer_via_hook",
    "test_ddp_broadcast_buffers_deprecation_warning",
    "test_ddp_bucket_cap_mb_list",
    "test_ddp_buffer_hook_allreduce",
    "test_ddp_buffer_hook_allreduce_return_future",
    "test_ddp_build_debug_param_to_name_mapping",
    "test_ddp_build_debug_param_to_name_mapping_requires_grad",
    "test_ddp_comm_hook_logging",
    "test_ddp_compile_static_graph",
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_create_graph",
    "test_ddp_device_mesh_initialization",
    "test_ddp_forward_backward_hook",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_hook_parity_allreduce",
    "test_ddp_hook_parity_powerSGD",
    "test_ddp_ignore_params_arg",
    "test_ddp_init_sync_buffers_with_forward_sync_buffers_false",
    "test_ddp_join_model_equivalence",
    "test_ddp_join_respects_forward_sync_buffers_false",
    "test_ddp_logging_data_cpu",
    "test_ddp_model_diff_num_params_across_ranks",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_namedtuple",
    "test_ddp_native_mixed_precision_ignored_params",
    "test_ddp_new_tensor_in_fwd",
    "test_ddp_new_tensor_in_fwd_static_graph",
    "test_ddp_profiling_torch_profiler",
    "test_ddp_python_error_logged",
    "test_ddp_remove_autograd_hooks",
    "test_ddp_returns_tensor_with_no_grad",
    "test_ddp_shared_grad_acc_unused_params",
    "test_ddp_sink_noclone",
    "test_ddp_static_graph_nested_types",
    "test_ddp_sync_module_states",
    "test_ddp_uneven_input_exception",
    "test_ddp_uneven_input_join_disable",
    "test_ddp_unused_params_rebuild_buckets_exception",
    "test_ddp_zero_output_features",
    "test_detect_ddp_is_actually_static",
    "test_different_graph_across_ranks",
    "test_dump_DDP_relevant_env_vars",
    "test_get_data_parallel_params",
    "test_grads_same_across_ranks_with_no_sync",
    "test_invalid_static_graph",
    "test_output_unused_in_loss_dict_module",
    "test_output_unused_in_loss_tuple_module",
    "test_post_localSGD_optimizer_parity",
    "test_post_localSGD_optimizer_parity_grad_is_view",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd",
    "test_post_localSGD_optimizer_parity_with_hierarchical_sgd_grad_is_view",
    "test_post_localSGD_optimizer_step_reload",
    "test_skip_all_reduce_unused_parameters",
    "test_stateless_api_with_ddp",
    "test_static_graph_api_cpu",
    "test_static_graph_multi_forward",
    "test_undefined_grad_parity_unused_parameters",
)
"""All that pass on two ranks without a codec, but one whose convolutions take minutes on CPUs."""

OWN_HOOK = "it registers a communication hook of its own, as attach() has done"
PICKLED = "it pickles the model, which works after detach()"
PRIVATE = "it looks at DDP's own log or calls, which a codec replaces"

EXCEPTIONS = {
    "test_DistributedDataParallelCPU": (PICKLED, "cannot be pickled or copied"),
    "test_DistributedDataParallelCPU_grad_is_view": (PICKLED, "cannot be pickled or copied"),
    "test_accumulate_gradients_no_sync_allreduce_hook": (OWN_HOOK, "can only be called once"),
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook": (OWN_HOOK, "can only be called once"),
    "test_ddp_apply_optim_in_backward": (OWN_HOOK, "can only be called once"),
    "test_ddp_apply_optim_in_backward_grad_as_bucket_view_false": (OWN_HOOK, "can only be called once"),
    "test_ddp_apply_optim_in_backward_ignored_params": (OWN_HOOK, "can only be called once"),
    "test_ddp_comm_hook_logging": (PRIVATE, "BucketHook.hook is not None"),
    "test_ddp_hook_parity_allreduce": (OWN_HOOK, "can only be called once"),
    "test_ddp_hook_parity_powerSGD": (OWN_HOOK, "can only be called once"),
    "test_ddp_logging_data_cpu": ("its parameters are float64", "got torch.float64"),
    "test_ddp_native_mixed_precision_ignored_params": (
        "DDP's mixed precision is a hook, which attach() refuses",
        "already has a communication hook",
    ),
    "test_ddp_profiling_torch_profiler": (PRIVATE, "Expected 6 but got 0"),
}
"""Why each of these fails with every model attached, and words of how it fails."""

LOSSY_EXCEPTIONS = {
    "test_static_graph_multi_forward": ("it compares values by torch.allclose", "is not true : tensor("),
}
"""Why some of the others fail with codecs that round, besides values that differ."""

SAMPLE = (
    "test_ddp_buffer_hook_allreduce_return_future",
    "test_ddp_create_graph",
    "test_ddp_grad_div_uneven_inputs",
    "test_ddp_join_model_equivalence",
    "test_ddp_static_graph_nested_types",
    "test_ddp_unused_params_rebuild_buckets_exception",
)
"""Tests of each kind that run at every change."""

LEAVE_BROKEN_REDUCERS = (
    "test_ddp_control_flow_different_across_ranks",
    "test_ddp_control_flow_same_across_ranks",
    "test_ddp_multiple_nested_unused_params_err_ignore_params",
    "test_ddp_multiple_nested_unused_params_error",
    "test_ddp_unused_params_rebuild_buckets_exception",
)
"""Tests that end backward passes with errors of DDP's, after which a process may have a segmentation fault,
also without a codec."""
