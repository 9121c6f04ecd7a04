"""Which test modules are integration tests, and which need real plots or a real map. Used by conftest.py."""

# Modules with processes, browsers, federations, or long trainings. The longest come first: the workers take them in
# this order, and the short ones at the end fill the gaps between the workers.
INTEGRATION = (
    "test_federate", "test_laws", "test_flower", "test_resume", "test_wire", "test_worker", "test_cli",
    "test_membership", "test_deploy", "test_page", "test_page_bundle", "test_page_input", "test_page_access",
    "test_node_noise", "test_secagg", "test_faults", "test_privacy_ledger", "test_audit", "test_labels",
    "test_decoders", "test_reductions", "test_fedveil", "test_fedrap", "test_degree", "test_bundle",
    "test_rounds_machine", "test_public", "test_serving", "test_operations", "test_report", "test_narrow_pages",
    "test_tradeoff", "test_recommender", "test_list_metrics", "test_own_methods", "test_new_items", "test_packing",
    "test_fedtrail",
    "test_cross_round", "test_new_method", "test_schemas", "test_taste", "test_fit", "test_gradients", "test_axes",
    "test_cluster", "test_item_names", "test_people_groups", "test_comparisons", "test_paired", "test_tune",
    "test_peers", "test_products",
)  # fmt: skip
DRAWN = ("test_report", "test_narrow_pages")  # need rendered plots; elsewhere a plot is one pixel
# Modules whose plots are drawn on real axes, though not rendered: plots or labels that the others do not have.
PLOTTED = (
    "test_audit", "test_axes", "test_federate", "test_fedveil", "test_labels", "test_membership", "test_list_metrics",
    "test_tune",
)  # fmt: skip
MAPPED = ("test_taste",)  # place items on the map by t-SNE; elsewhere two numbers of an item are its place
