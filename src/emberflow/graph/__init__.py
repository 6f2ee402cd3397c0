"""The graph of a flow: its nodes and edges, checked. How they run is the runners' business."""
